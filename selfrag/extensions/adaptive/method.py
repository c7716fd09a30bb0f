"""The protocol of a method, and the two ends of every comparison: never search, always search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, cast

from selfrag.extensions.adaptive.reader import QuestionWork
from selfrag.interface import Decoder, check_float, check_int


class RetrievalMethod(Protocol):
    """A way to answer a question with searches. A frozen dataclass, whose fields are its settings.

    Whole numbers are at least 1, and others from 0 to 1, unless `ranges` says otherwise.
    """

    # the setting that trades cost for quality; empty for none
    tuned: ClassVar[str] = ""
    # its values that a development part is tried with
    grid: ClassVar[tuple[float, ...]] = ()
    # least and most value of settings
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def __post_init__(self) -> None:
        for field in fields(cast(Any, self)):
            name, value = field.name, getattr(self, field.name)
            if field.type == "int":
                least, _ = self.ranges.get(name, (1, math.inf))
                check_int(name, value, int(least))
            elif field.type == "float":
                check_float(name, value, *self.ranges.get(name, (0, 1)))

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
