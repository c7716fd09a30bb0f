"""The protocol of a method, and the two ends of every comparison: never search, always search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from selfrag.extensions.adaptive.reader import QuestionWork
from selfrag.interface import Decoder


class RetrievalMethod(Protocol):
    """A way to answer a question with searches. A frozen dataclass, whose fields are its settings."""

    # the setting that trades cost for quality; empty for none
    tuned: ClassVar[str] = ""
    # its values that a development part is tried with
    grid: ClassVar[tuple[float, ...]] = ()

    def decoder(self, work: QuestionWork) -> Decoder:
        """Answer the question."""


@dataclass(frozen=True, slots=True)
class Never(RetrievalMethod):
    """The model alone."""

    def decoder(self, work: QuestionWork) -> Decoder:
        """Write a short answer."""
        written = yield from work.read()
        return work.answer(written.text)


@dataclass(frozen=True, slots=True)
class Always(RetrievalMethod):
    """One search for the question, and an answer from what it finds."""

    def decoder(self, work: QuestionWork) -> Decoder:
        """Search, and write a short answer."""
        passages = yield from work.search(work.question)
        written = yield from work.read(passages)
        return work.answer(written.text)
