"""Our decoder on a list of questions, timed. Knows no rival."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from selfrag.decoding.answer import Answer
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.sessions import Serving
from selfrag.errors import DecodingError
from selfrag.experiments.speed.workload import Item
from selfrag.prompting import Prompting


@dataclass(frozen=True, slots=True)
class Work:
    """What a run had the engine do."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Some questions answered.

    Attributes:
        seconds: wall time, tokenising included.
        texts: the answers, in the order of the questions.
        work: what the engine did.
        answers: with their traces; empty for rivals.
    """

    seconds: float
    texts: tuple[str, ...]
    work: Work
    answers: tuple[Answer, ...] = field(default=(), repr=False)

    @property
    def speed(self) -> float:
        """Questions a second."""
        return len(self.texts) / self.seconds


def answer_all(
    items: Sequence[Item], prompting: Prompting, policy: Decoding, engine: Serving, *, max_live: int = 256
) -> Run:
    """Answer all questions; `max_live` of them share the engine's batches.

    Raises:
        DecodingError: a question failed; a benchmark must not go faster by failing.
    """
    start = time.perf_counter()
    answers: dict[int, Answer] = {}
    decoders = (decode(item.question, prompting, policy, passages=item.passages) for item in items)
    for event in drive(decoders, engine, None, max_live=max_live):
        if isinstance(event, Broken):
            raise DecodingError(f"{items[event.index].question!r} failed: {event.error}")
        if isinstance(event, Answered):
            answers[event.index] = event.answer
    seconds = time.perf_counter() - start
    ordered = tuple(answers[i] for i in range(len(items)))
    usages = [answer.usage for answer in ordered]
    work = Work(
        requests=sum(usage.requests for usage in usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        generated_tokens=sum(usage.generated_tokens for usage in usages),
    )
    return Run(seconds, tuple(answer.text for answer in ordered), work, ordered)
