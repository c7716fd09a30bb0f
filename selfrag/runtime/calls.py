"""One call of a model: its decoders on an engine, as answers or as a stream, in threads or on an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Self

from retrieval.passage import Retriever
from selfrag.common.errors import DecodingError
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.decoding.tree import Decoder
from selfrag.runtime.driver import Answered, Broken, Committed, Event, adrive, drive
from selfrag.runtime.sessions import Serving
from selfrag.runtime.sessions import close as close_engine


class OwnsEngine:
    """What holds an engine, which is freed at the end of a `with` block."""

    __slots__ = ()
    engine: Serving

    def close(self) -> None:
        """Free the engine."""
        close_engine(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Call:
    """One call: one question or many."""

    decoders: Sequence[Decoder]  # of its questions
    engine: Serving
    retriever: Retriever | None
    policy: Decoding = Decoding()  # noqa: RUF009 - frozen value
    # of a list, for reports; None for a single question, whose failure is raised
    questions: Sequence[str] | None = None
    notes: Sequence[str | None] = ()  # of each question; none where no answer has one

    def answers(self) -> Answer | list[Answer]:
        """What the caller gets when all is done."""
        return self._collected(drive(self.decoders, self.engine, self.retriever))

    async def answers_async(self) -> Answer | list[Answer]:
        """`answers` for an event loop."""
        events = adrive(self.decoders, self.engine, self.retriever)
        return self._collected([event async for event in events])

    def pieces(self) -> Iterator[Segment | Answer]:
        """Segments as they come, then the answer."""
        for event in drive(self.decoders, self.engine, self.retriever):
            yield event.segment if isinstance(event, Committed) else self._noted(answer_of(event), 0)

    async def pieces_async(self) -> AsyncGenerator[Segment | Answer, None]:
        """`pieces` for an event loop."""
        async with aclosing(adrive(self.decoders, self.engine, self.retriever)) as events:
            async for event in events:
                yield event.segment if isinstance(event, Committed) else self._noted(answer_of(event), 0)

    def _collected(self, events: Iterable[Event]) -> Answer | list[Answer]:
        ends = {event.index: event for event in events if not isinstance(event, Committed)}
        if self.questions is None:
            return self._noted(answer_of(ends[0]), 0)
        listed = [ends[index] for index in range(len(self.questions))]
        return [
            self._noted(end.answer, number)
            if isinstance(end, Answered)
            else Answer.failed(question, self.policy, end.error)
            for number, (end, question) in enumerate(zip(listed, self.questions, strict=True))
        ]

    def _noted(self, answer: Answer, number: int) -> Answer:
        """Return an answer with the note on its question, if there is one."""
        note = self.notes[number] if self.notes else None
        return answer if note is None else replace(answer, note=note)


def answer_of(end: Answered | Broken) -> Answer:
    """The answer to a single question; where there is none, why is raised."""
    if isinstance(end, Broken):
        raise end.error
    if end.answer.error is not None:
        raise DecodingError(end.answer.error)
    answer: Answer = end.answer
    return answer
