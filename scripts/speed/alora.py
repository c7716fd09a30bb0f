"""Five intrinsics on one conversation: activated adapters over the base model's keys and values, against plain ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common.checks import whole
from selfrag.common.errors import UserError, require
from selfrag.common.pretrained import load
from selfrag.intrinsics.catalog import PAPER, find
from selfrag.intrinsics.contract import Failed, Request
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.intrinsics.rendering import Renderer
from selfrag.intrinsics.state import Message, State
from selfrag.tokenization import TextCodec
from selfrag.training.intrinsics.job import invocation_of

PASSAGES = 5
"""Passages of a conversation, as in the paper's flows."""

SHARE = 0.7
"""Of the tokens, those of the passages; the rest are turns."""


def conversation(corpus: Iterable[Passage], codec: TextCodec, tokens: int, number: int) -> tuple[State, State]:
    """One conversation as it ends with the user's question, and with the reply to it.

    Args:
        corpus: passages; other numbers take others, so that nothing was computed before.
        codec: counts tokens.
        tokens: wanted, over passages and turns.
        number: of the conversation, from 0.

    Raises:
        UserError: the corpus is too small.
    """
    found = list(islice(corpus, number * 4 * PASSAGES, (number + 1) * 4 * PASSAGES))
    if len(found) < 4 * PASSAGES:
        raise UserError(f"the corpus has too few passages for {number + 1} conversations; ask for fewer repeats")
    held = tuple(
        Passage(one.id, _cut(f"{one.text} {other.text}", codec, int(tokens * SHARE / PASSAGES)), one.title)
        for one, other in zip(found[:PASSAGES], found[PASSAGES : 2 * PASSAGES], strict=True)
    )
    said = found[2 * PASSAGES :]
    each = int(tokens * (1 - SHARE) / 4)
    turns = [
        Message("user", f"What is to be known about {said[0].title}?"),
        Message("assistant", _cut(f"{said[1].text} {said[2].text}", codec, 3 * each)),
        Message("user", f"And what about {held[0].title}?"),
    ]
    reply = Message("assistant", _cut(held[0].text, codec, each))
    return State(tuple(turns), held), State((*turns, reply), held)


def _cut(text: str, codec: TextCodec, tokens: int) -> str:
    return codec.decode(codec.encode(text)[:tokens])


GOAL = 0.5
"""Time of activated adapters over that of plain ones, at most."""

KINDS = ("plain", "activated")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    tokens: int = 2000  # of the conversation with its passages
    rank: int = 32  # of the adapters (the paper: 32 and 8)
    repeats: int = 5  # conversations, each new to the engine
    max_tokens: int = 40  # most new tokens of the rewrite

    def __post_init__(self) -> None:
        for name, least in (("tokens", 200), ("rank", 1), ("repeats", 1), ("max_tokens", 1)):
            whole(name, getattr(self, name), least)


@dataclass(frozen=True, slots=True)
class Timed:
    """One intrinsic with one kind of adapter, over the conversations."""

    kind: str  # `plain` or `activated`
    intrinsic: str  # its name
    seconds: tuple[float, ...]  # of each conversation
    prompt_tokens: tuple[int, ...]  # of each conversation, over all engine requests
    computed_tokens: tuple[int, ...]  # of these, not taken from kept keys and values
    generated_tokens: tuple[int, ...]  # of each conversation


@dataclass(frozen=True, slots=True)
class Report:
    """Everything measured."""

    sizes: Sizes
    timed: tuple[Timed, ...]
    same: bool

    def seconds(self, kind: str) -> float:
        """Median over the conversations of the time of all five."""
        each = zip(*(one.seconds for one in self.timed if one.kind == kind), strict=True)
        return statistics.median(map(sum, each))

    @property
    def ratio(self) -> float:
        """Activated over plain."""
        return self.seconds("activated") / self.seconds("plain")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        totals = {kind: self.seconds(kind) for kind in KINDS}
        return {**asdict(self), "seconds": totals, "ratio": self.ratio}


def race(base: Path, corpus: Sequence[Passage], sizes: Sizes, folder: Path, say: Callable[[str], None]) -> Report:
    """Time both kinds on the same conversations, in turns.

    Args:
        base: checkpoint directory.
        corpus: what the conversations are made of.
        sizes: what is measured.
        folder: adapters are written here.
        say: progress.

    Raises:
        UserError: the base model cannot be used.
    """
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine
    from selfrag.loading import load_tokenizer

    tokenizer = load_tokenizer(base)
    renderer = Renderer.of(tokenizer)
    adapters = make_adapters(base, invocation_of(renderer), PAPER, sizes.rank, folder)
    say(f"made {len(adapters)} adapters of rank {sizes.rank}")
    runs: dict[tuple[str, str], list[tuple[float, int, int, int]]] = {}
    results: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    engine = TransformersEngine.load(TransformersConfig(str(base), adapters=adapters))
    try:
        executor = EngineExecutor(engine, renderer)
        for number in range(-1, sizes.repeats):  # the first one warms up
            states = conversation(corpus, renderer.text, sizes.tokens, number + 1)
            for kind in KINDS if number % 2 else KINDS[::-1]:
                for request in requests(states, kind, sizes.max_tokens):
                    begun = time.perf_counter()
                    [done] = executor.run([request])
                    spent = time.perf_counter() - begun
                    if isinstance(done, Failed):
                        raise UserError(f"{request.adapter}: {done.reason}")
                    if number >= 0:
                        computed = done.prompt_tokens - done.cached_tokens
                        row = (spent, done.prompt_tokens, computed, done.generated_tokens)
                        runs.setdefault((kind, str(request.adapter)), []).append(row)
                        results[kind].append((done.text, done.scores))
            say("warmed up" if number < 0 else f"conversation {number + 1} of {sizes.repeats}")
    finally:
        engine.close()
    timed = tuple(
        Timed(kind, adapter.removeprefix(f"{kind}-"), *zip(*rows, strict=True))
        for (kind, adapter), rows in runs.items()
    )
    return Report(sizes, timed, _same(results["plain"], results["activated"]))


def requests(states: tuple[State, State], kind: str, max_tokens: int) -> list[Request]:
    """The five in the default dialect: on the question, or on the reply, as each wants it."""
    asked, replied = states
    found = []
    for intrinsic in map(find, PAPER):
        state = replied if "assistant" in intrinsic.needs.ends_with else asked
        request = intrinsic.default_codec().encode(state)
        found.append(
            replace(request, adapter=f"{kind}-{intrinsic.name}", max_tokens=min(max_tokens, request.max_tokens))
        )
    return found


def make_adapters(
    base: Path, invocation: Sequence[int], names: Sequence[str], rank: int, folder: Path
) -> dict[str, Path]:
    """A plain and an activated adapter for each name, equal in size, that begin as no change."""
    peft = require("peft", extra="train")
    made = {}
    for kind in KINDS:
        tokens = list(invocation) if kind == "activated" else None
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", r=rank, lora_alpha=rank, target_modules="all-linear", alora_invocation_tokens=tokens
        )
        model = peft.get_peft_model(load("AutoModelForCausalLM", base), config)
        for name in names:
            made[f"{kind}-{name}"] = folder / f"{kind}-{name}"
            model.save_pretrained(made[f"{kind}-{name}"])
    return made


def table(report: Report) -> str:
    """Medians for each intrinsic, as a Markdown table."""
    lines = ["| intrinsic | adapter | s | prompt tokens | computed | generated |", "|---|---|---:|---:|---:|---:|"]
    for one in report.timed:
        numbers = (one.prompt_tokens, one.computed_tokens, one.generated_tokens)
        counts = " | ".join(str(round(statistics.median(values))) for values in numbers)
        lines.append(f"| {one.intrinsic} | {one.kind} | {statistics.median(one.seconds):.2f} | {counts} |")
    lines += [f"| **all five** | {kind} | **{report.seconds(kind):.2f}** | | | |" for kind in KINDS]
    return "\n".join(lines)


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether both kinds wrote the same, as untrained adapters must."""
    return [text for text, _ in one] == [text for text, _ in other]
