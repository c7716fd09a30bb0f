"""How the benchmarks time, pair and print: ways in turn, ratios of their rounds, and lines of one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scripts.benchmarks.workload import Item
from scripts.command import progress
from selfrag.common.atomic import write_json
from selfrag.common.errors import DecodingError
from selfrag.common.provenance import commit, machine
from selfrag.decoding.answer import Answer
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.prompting import Prompting
from selfrag.reflection.requests import Usage
from selfrag.render.tables import compact, escape
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive
from selfrag.runtime.sessions import Serving


@dataclass(frozen=True, slots=True)
class Run:
    """Some questions answered."""

    seconds: float  # wall time, tokenising included
    questions: int
    usage: Usage  # what the engine did
    answers: tuple[Answer, ...] = ()  # with their traces; empty for rivals


@dataclass(slots=True)
class Series:
    """One way, timed several times."""

    name: str
    runs: list[Run] = field(default_factory=list)

    @property
    def per_question(self) -> list[float]:
        """Return the seconds of a question in each round."""
        return [run.seconds / run.questions for run in self.runs]


def answer_all(
    items: Sequence[Item],
    prompting: Prompting,
    policy: Decoding,
    engine: Serving,
    *,
    max_live: int = 256,
) -> Run:
    """Answer all questions; `max_live` of them share the engine's batches.

    Raises:
        DecodingError: a question failed; a benchmark must not go faster by failing.
    """
    start = time.perf_counter()
    answers: dict[int, Answer] = {}
    decoders = (
        decode(item.instruction, prompting, policy, passages=item.passages)
        for item in items
    )
    for event in drive(decoders, engine, None, max_live=max_live):
        if isinstance(event, QuestionFailed):
            question = items[event.index].instruction
            raise DecodingError(f"{question!r} failed: {event.error}")
        if isinstance(event, QuestionAnswered):
            answers[event.index] = event.answer
    seconds = time.perf_counter() - start
    ordered = tuple(answers[index] for index in range(len(items)))
    usage = sum((answer.usage for answer in ordered), Usage())
    return Run(seconds, len(ordered), usage, ordered)


def race(
    ways: Mapping[str, Callable[[], Run]], repeats: int, prepare: Callable[[], None]
) -> list[Series]:
    """Run all ways in turn, `repeats` times; every second round backwards.

    Each runs in a thread of its own, as an engine does: vLLM pins the main thread to one core of a CPU.

    Args:
        ways: name to what runs it; in the first round they run in this order.
        repeats: rounds, at least 1.
        prepare: called before each run, outside the clock.
    """
    series = [Series(name) for name in ways]
    for number in range(repeats):
        for way in series if number % 2 == 0 else reversed(series):
            prepare()
            with ThreadPoolExecutor(1) as thread:
                way.runs.append(thread.submit(ways[way.name]).result())
    return series


def ratio(slow: Series, fast: Series) -> str:
    """Return the time of `slow` over the time of `fast`, a question: the median of the rounds, and their range."""
    rounds = np.divide(slow.per_question, fast.per_question)
    return f"{np.median(rounds):.2f} ({rounds.min():.2f}-{rounds.max():.2f})"


def speed_of(series: Series) -> dict[str, float]:
    """Return questions a second, and what the engine did for a question in the last round."""
    run = series.runs[-1]
    questions = run.questions
    return {
        "questions": questions,
        "questions/s": 1 / median(series.per_question),
        "requests/question": run.usage.requests / questions,
        "prompt tokens/question": run.usage.prompt_tokens / questions,
        "of these cached": run.usage.cached_tokens / questions,
        "new tokens/question": run.usage.generated_tokens / questions,
    }


class Report:
    """Lines of a table. Each is told, and on disk, as soon as it is measured: a run that is stopped keeps them."""

    def __init__(self, out: Path | None) -> None:
        self.lines: list[dict[str, Any]] = []
        self._out = out
        self.say = progress()
        self._facts = {"commit": commit(), "machine": machine()}

    def add(self, **line: Any) -> None:
        """Add a line."""
        self.lines.append(line)
        self.say(", ".join(f"{name}: {cell(value)}" for name, value in line.items()))
        if self._out:
            write_json(self._out, {**self._facts, "lines": self.lines})

    def print(self) -> None:
        """Print the table, and the machine."""
        print(f"{table(self.lines)}\n{self._facts}")


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines as Markdown; a column for each name, in the order of their first appearance."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    rows = ([cell(line.get(name)) for name in names] for line in lines)
    return compact(names, rows)


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else escape(str(value))
