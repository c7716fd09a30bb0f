"""A scripted model with segments of 60 to 100 tokens, whose IsRel scores are distributed as the demo model's were."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from retrieval.passage import Passage
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Generate
from selfrag.engines.base import Limits
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.prompting import Prompting
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE, TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.runtime.driver import Answered, drive

EOS, BOS, FIRST = 0, 40, 100
VOCABULARY = Vocabulary({token: i for i, token in enumerate(TOKENS, start=1)}, EOS)
RELEVANCE = {
    "one relevant passage": (0, 0.003, 0.011, 0.029, 0.047, 0.095, 0.199, 0.5, 0.69, 0.881, 0.997),
    "most are relevant": (0, 0.002, 0.007, 0.182, 0.916, 0.971, 0.988, 0.994, 0.998, 0.999, 1.0),
}
"""Deciles of s(IsRel) over 100 passages of `nq_dev`, and over 110 of "Tell me about ..."."""


class Characters:
    """Every character is one id."""

    bos_ids = (BOS,)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [FIRST + ord(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return "".join(chr(i - FIRST) for i in ids)


def model(deciles: Sequence[float]) -> Callable[[Generate], Reply]:
    """A model that always writes the same after a prompt."""

    def reply(request: Generate) -> Reply:
        seed = zlib.crc32(np.array(request.prompt_ids, dtype=np.int64).tobytes())
        draw = random.Random(seed)  # noqa: S311 - no secret
        relevant = float(np.interp(draw.random() * 10, range(11), deciles))
        supported = (0.9, 0.08, 0.02) if draw.random() < 0.3 + 0.6 * relevant else (0.1, 0.3, 0.6)
        useful = (0.02, 0.03, 0.05, 0.2, 0.7) if draw.random() < 0.8 else (0.1, 0.2, 0.4, 0.2, 0.1)
        ids: list[int] = []
        rows: dict[int, dict[int, float]] = {}
        for labels, distribution in ((ISREL, (relevant, 1 - relevant)), (ISSUP, supported), (ISUSE, useful)):
            group = VOCABULARY.group(labels)
            rows[len(ids)] = dict(zip(group, distribution, strict=True))
            ids.append(group[distribution.index(max(distribution))])
            if labels is ISREL:
                ids += [FIRST + ord("a") + draw.randrange(26) for _ in range(draw.randint(60, 96))]
        rows[len(ids)] = dict(zip(VOCABULARY.group(RETRIEVE), (0.6, 0.2, 0.2), strict=True))
        ids.append(EOS if draw.random() < 0.3 else VOCABULARY.retrieve[0])
        level = np.log(draw.uniform(0.7, 0.95))
        return Reply(tuple(ids), rows, [2 * level * draw.random() for _ in ids])

    return reply


def search(queries: Sequence[str], k: int, /) -> list[list[Passage]]:
    """`k` passages for each query."""
    return [[Passage(f"d{i}", f"{i} {zlib.crc32(query.encode())}", f"T{i}") for i in range(k)] for query in queries]


def compared(deciles: Sequence[float], questions: int, segments: int) -> tuple[int, int, int]:
    """Tokens of the full search and with branch and bound, and how many of the answers differ."""
    tokens, answers = [0, 0], list[list[object]]()
    for on in (False, True):
        policy = Decoding(mode="always", max_segments=segments, branch_and_bound=on)
        found: list[object] = [None] * questions
        for number in range(questions):
            limits = Limits(max_model_len=8192, vocab_size=FIRST + 0x110000)
            engine = ScriptedEngine(model(deciles), EOS, limits, pace=1)
            decoder = decode(f"Q{number}", Prompting(Characters(), VOCABULARY), policy)
            for event in drive([decoder], engine, search):
                if isinstance(event, Answered):
                    found[number] = event.answer.text, [segment.score for segment in event.answer.segments]
            tokens[on] += engine.generated
        answers.append(found)
    return tokens[0], tokens[1], sum(a != b for a, b in zip(*answers, strict=True))
