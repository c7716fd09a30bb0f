"""`SearchTagModel`: a model that searches by writing tags, behind calls like those of `SelfRAG`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, overload

from retrieval.passage import Passage, Retriever
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.driver import Answered, Broken, Committed, Event, SharedRetriever, adrive, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.search_tags import Budget, Profile, Searcher, decode_tags
from selfrag.decoding.sessions import close as close_engine
from selfrag.engines import select
from selfrag.engines.base import Engine
from selfrag.errors import DecodingError
from selfrag.loading import load_retriever, load_tokenizer, resolve_model


@dataclass(slots=True)
class SearchTagModel:
    """Answers questions by turns and searches: Search-R1 and its relatives.

    Any number of threads and event loops may ask at the same time; their questions share the engine's batches. Options
    of each call are fields of `selfrag.decoding.search_tags.Budget`.

    Attributes:
        searcher: format, tokenizer and budget.
        engine: where tokens come from.
        retriever: any callable `queries, k -> passages`, called by one thread at a time; None if evidence is always
            given.
    """

    searcher: Searcher
    engine: Engine
    retriever: Retriever | None = None

    def __post_init__(self) -> None:
        if self.retriever is not None:
            self.retriever = SharedRetriever(self.retriever)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        profile: str | Profile = "search-r1",
        retriever: Retriever | str | Path | None = None,
        engine: Engine | str | None = None,
        budget: Budget | None = None,
        **engine_options: Any,
    ) -> SearchTagModel:
        """Load a checkpoint.

        Args:
            name_or_path: a directory, or a name on the Hugging Face hub.
            profile: its format: `search-r1`, `autorefine`, `r1-searcher`, `simpledeepsearcher`, `o2-searcher`, or one
                of your own.
            retriever: a callable `queries, k -> passages`, the directory of an index, or the address of a search
                server such as `http://127.0.0.1:8000/retrieve`.
            engine: `vllm`, `transformers`, a ready engine, or None for the best one installed.
            budget: of each answer.
            engine_options: fields of the engine's configuration.

        Raises:
            UserError: the model, the index or the profile cannot be used; the message says what to do.
        """
        path = resolve_model(name_or_path)
        tokenizer = load_tokenizer(path, trust_remote_code=engine_options.get("trust_remote_code", False))
        searcher = Searcher.of(tokenizer, profile, budget)
        if isinstance(engine, str) or engine is None:
            engine = select.load_engine(engine, path, **engine_options)
        found = load_retriever(retriever, demo=False)
        return cls(searcher, engine, found)

    @overload
    def generate(self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any) -> Answer: ...

    @overload
    def generate(
        self, question: Sequence[str], *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> list[Answer]: ...

    def generate(
        self, question: str | Sequence[str], *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Answer | list[Answer]:
        """Answer one question, or many in one batch.

        Args:
            question: a question, or a list of them.
            evidence: passages to use in place of every search.
            options: fields of `Budget`.

        Returns:
            An answer, or a list in the order of the questions. In a list a question without an answer has
            `answer.error` set.

        Raises:
            UserError: a wrong option, or the one question was not answered.
        """
        questions = [question] if isinstance(question, str) else question
        events = drive(self._decoders(questions, evidence, options), self.engine, self.retriever)
        found = {event.index: event for event in events if not isinstance(event, Committed)}
        if isinstance(question, str):
            return _raised(found[0])
        ends = [found[index] for index in range(len(found))]
        return [
            end.answer if isinstance(end, Answered) else Answer.failed(one, Decoding(), end.error)
            for end, one in zip(ends, questions, strict=True)
        ]

    async def agenerate(self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any) -> Answer:
        """`generate` of one question for an event loop, which is free meanwhile."""
        async with aclosing(self.astream(question, evidence=evidence, **options)) as pieces:
            found = [piece async for piece in pieces]
        return cast(Answer, found[-1])

    def stream(
        self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Iterator[Segment | Answer]:
        """The answer's segment as soon as it is final, then the answer."""
        for event in drive(self._decoders([question], evidence, options), self.engine, self.retriever):
            yield event.segment if isinstance(event, Committed) else _raised(event)

    async def astream(
        self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> AsyncGenerator[Segment | Answer, None]:
        """`stream` for an event loop. Leaving early aborts what is still running."""
        decoders = self._decoders([question], evidence, options)
        async with aclosing(adrive(decoders, self.engine, self.retriever)) as events:
            async for event in events:
                yield event.segment if isinstance(event, Committed) else _raised(event)

    def close(self) -> None:
        """Free the engine."""
        close_engine(self.engine)

    def __enter__(self) -> SearchTagModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decoders(
        self, questions: Iterable[str], evidence: Sequence[Passage] | None, options: Mapping[str, Any]
    ) -> list[Any]:
        searcher = replace(self.searcher, budget=self.searcher.budget.changed(**options))
        return [decode_tags(question, searcher, evidence) for question in questions]


def _raised(event: Event) -> Answer:
    if isinstance(event, Broken):
        raise event.error
    answer = cast(Answered, event).answer
    if answer.error is not None:
        raise DecodingError(answer.error)
    return answer
