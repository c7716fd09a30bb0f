"""The protocol of a method, and the two ends of every comparison: never search, always search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from selfrag.extensions.adaptive.reader import QuestionWork
from selfrag.interface import Decoder


class RetrievalMethod(Protocol):
    """A way to answer a question with searches. A frozen dataclass, whose fields are its settings."""

    tuned: ClassVar[str]  # the setting that trades cost for quality; empty for none
    grid: ClassVar[
        tuple[float, ...]
    ]  # its values that a development part is tried with

    def decoder(self, work: QuestionWork) -> Decoder:
        """Answer the question."""


@dataclass(frozen=True, slots=True)
class Never:
    """The model alone."""

    tuned: ClassVar[str] = ""
    grid: ClassVar[tuple[float, ...]] = ()

    def decoder(self, work: QuestionWork) -> Decoder:
        """Write a short answer."""
        written = yield from work.read()
        return work.answer(written.text)


@dataclass(frozen=True, slots=True)
class Always:
    """One search for the question, and an answer from what it finds."""

    tuned: ClassVar[str] = ""
    grid: ClassVar[tuple[float, ...]] = ()

    def decoder(self, work: QuestionWork) -> Decoder:
        """Search, and write a short answer."""
        passages = yield from work.search(work.question)
        written = yield from work.read(passages)
        return work.answer(written.text)
