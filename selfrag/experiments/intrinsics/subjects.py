"""What is measured: adapters, reflection tokens, words, the model by a prompt or with examples, published figures."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

from selfrag.evaluation.metrics.alce import Entails
from selfrag.evaluation.metrics.grading import Grader
from selfrag.interface import (
    Capability,
    ChatPrompt,
    Code,
    Completion,
    Failed,
    Judge,
    JudgeInput,
    Message,
    ModelRequest,
    Progress,
    Reflection,
    Steps,
    Teachable,
)
from selfrag.intrinsics.catalog import codec_of, find
from selfrag.intrinsics.named import chat_model
from selfrag.judges.wire import DIALECT, Codec, Executor
from selfrag.training.intrinsics.job import chosen
from selfrag.training.intrinsics.rows import IntrinsicRow, gold_of

ADAPTED, UNTRAINED, PROMPTED = "adapter", "untrained", "prompted"
"""Names of the systems: our adapter; the base, asked in the same way; the base with worked examples before it."""


@dataclass(frozen=True)
class Subject:
    """One way to ask one model."""

    name: str  # in reports
    executor: Executor  # runs the requests
    # intrinsic -> adapter of the executor; empty for the base model
    adapters: Mapping[str, str] = field(default_factory=dict)
    # intrinsic -> who judges in place of a codec
    judges: Mapping[str, Judge] = field(default_factory=dict)
    # of the adapters; what has no adapter is asked in the default dialect
    dialect: str = DIALECT
    chunk: int = 64  # states that go to the executor at once
    # intrinsic and why each state has no answer, of every question put; shared by copies
    errors: list[tuple[str, str, list[str | None]]] = field(default_factory=list)

    def codec(self, intrinsic: str) -> Codec:
        """Return what asks for an intrinsic."""
        return codec_of(
            find(intrinsic), self.dialect if intrinsic in self.adapters else DIALECT
        )

    def judge(self, intrinsic: str) -> Capability[Any]:
        """Return the intrinsic as this subject judges it."""
        kind, judge = find(intrinsic), self.judges.get(intrinsic)
        if judge is not None:
            return kind(judge)
        return kind.on(
            self.executor, self.codec(intrinsic), self.adapters.get(intrinsic)
        )

    def ask(self, intrinsic: str, states: Sequence[JudgeInput]) -> list[Reflection]:
        """Return one reflection a state, in order; a request that failed is a reflection without findings."""
        judge = self.judge(intrinsic)
        reflections: list[Reflection] = []
        with Progress(
            f"{intrinsic}: {self.name}", "row", len(states), quiet=0
        ) as progress:
            for start in range(0, len(states), self.chunk):
                part = states[start : start + self.chunk]
                reflections += judge.reflections(part)
                progress.advance(len(part))
        self.errors.append((self.name, intrinsic, list(map(_error, reflections))))
        return reflections

    def result(self, intrinsic: str, reflection: Reflection) -> Any:
        """Return the typed result, as the public interface gives it."""
        return self.judge(intrinsic).result(reflection)


def _error(reflection: Reflection) -> str | None:
    """Return why a request was not served; None if it was."""
    for note in reflection.diagnostics:
        if note.code is Code.FAILED:
            return note.message
    return None


def ask(subject: Subject, intrinsic: str, states: Sequence[JudgeInput]) -> list[Any]:
    """Return the typed results of a subject, one a state."""
    return [
        subject.result(intrinsic, reflection)
        for reflection in subject.ask(intrinsic, states)
    ]


def prompted(spec: str, kind: str = "") -> Subject:
    """Return a model that is asked by prompts, as `chat_model` takes it; `kind` stands before its name."""
    executor, name, _ = chat_model(spec)
    return Subject(f"{kind}{name}", executor)


@dataclass(frozen=True, slots=True)
class Beside:
    """Models beside the one that is measured."""

    entails: Entails | None = None  # decides on entailment
    grader: Grader | None = None  # grades
    rival: Subject | None = None  # asked by the same prompts as the base


ALONE = Beside()


@dataclass(frozen=True)
class FewShot(Executor):
    """An executor that puts worked examples, turns of user and assistant, before each request."""

    executor: Executor
    shots: tuple[Message, ...]

    @cached_property
    def engine(self) -> Any:
        """Return the engine of the executor."""
        return self.executor.engine

    def steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Completion | Failed]]:
        """Ask the executor; a prompt that is rendered by its dialect stays as it is."""
        return (
            yield from self.executor.steps(
                [self._shown(request) for request in requests]
            )
        )

    def _shown(self, request: ModelRequest) -> ModelRequest:
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            return request
        return replace(
            request, prompt=replace(prompt, messages=(*self.shots, *prompt.messages))
        )


def worked(
    rows: Sequence[IntrinsicRow], codec: Teachable, count: int, *, seed: int = 0
) -> tuple[Message, ...]:
    """Return worked examples from the shorter half of training rows, labels in turn."""

    def length(state: JudgeInput) -> int:
        texts = [
            *(message.content for message in state.messages),
            *(passage.text for passage in state.passages),
        ]
        return sum(map(len, texts))

    short = sorted(rows, key=lambda row: (length(row.state), row.id))[
        : max(count, len(rows) // 2)
    ]
    turns: list[Message] = []
    for row in chosen(short, count, seed):
        request = codec.encode(row.state)
        targets = codec.teach(request, gold_of(row, request))
        if targets and isinstance(request.prompt, ChatPrompt):
            reply = "\n".join(target.prefill + target.text for target in targets)
            turns += [*request.prompt.messages, Message("assistant", reply)]
    return tuple(turns)


PUBLISHED: Mapping[str, Any] = tomllib.loads(
    files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
)
"""Figures of the paper: what was measured to systems to values, some of them by part or by task."""
