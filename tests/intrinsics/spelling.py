"""A model and a tokenizer small enough to enumerate: pieces of text as ids, probabilities from a hash of the prefix."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import numpy as np

from selfrag.decoding.requests import Generate
from selfrag.engines.base import Limits
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.intrinsics.rendering import Renderer

END = 0
PROMPT = "#"


class Pieces:
    """A `TextCodec` that takes the longest piece first; id 0 is EOS."""

    bos_ids = ()

    def __init__(self, *pieces: str) -> None:
        self.pieces = (PROMPT, *pieces)

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            piece = max((p for p in self.pieces if text.startswith(p)), key=len)
            ids.append(self.pieces.index(piece) + 1)
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i - 1] for i in ids if i != END)

    @property
    def size(self) -> int:
        return len(self.pieces) + 1


def probabilities(codec: Pieces, prefix: Sequence[int], seed: int) -> np.ndarray:
    """Distribution of the next id."""
    draw = np.random.default_rng(zlib.crc32(np.array([seed, *prefix], dtype=np.int64).tobytes()))
    weights = draw.exponential(size=codec.size) ** 2
    return weights / weights.sum()


def engine(codec: Pieces, seed: int = 0, max_watch: int = 128) -> ScriptedEngine:
    def reply(request: Generate) -> Reply:
        row = probabilities(codec, request.prompt_ids, seed)
        return Reply((int(row.argmax()),), {0: dict(enumerate(row.tolist()))})

    return ScriptedEngine(reply, END, Limits(1000, codec.size, max_watch))


def renderer(codec: Pieces) -> Renderer:
    return Renderer(None, codec, END)


def brute_force(codec: Pieces, seed: int, context: Sequence[int], texts: Sequence[str], depth: int) -> list[float]:
    """Probability that what follows `context` begins with each text, over every sequence of `depth` ids."""
    found = [0.0] * len(texts)
    for ids in itertools.product(range(codec.size), repeat=depth):
        mass = 1.0
        for i, one in enumerate(ids):
            mass *= probabilities(codec, (*context, *ids[:i]), seed)[one]
        # EOS ends the text.
        said = codec.decode(ids[: ids.index(END)] if END in ids else ids)
        for number, text in enumerate(texts):
            if said.startswith(text):
                found[number] += mass
    return found
