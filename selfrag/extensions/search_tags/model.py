"""`SearchTagModel`: a model that searches by tags, an engine and a retriever behind `generate`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, overload

from selfrag.extensions.search_tags.decoder import (
    Budget,
    Profile,
    Searcher,
    decode_tags,
)
from selfrag.interface import (
    Answer,
    Call,
    Engine,
    OwnsEngine,
    Passage,
    Retriever,
    Segment,
    SharedRetriever,
    load_checkpoint,
    load_retriever,
    ready_engine,
)


@dataclass(slots=True)
class SearchTagModel(OwnsEngine):
    """A model that searches by writing tags: answers questions by turns and searches, as Search-R1 and its relatives.

    Any number of threads and event loops may ask at the same time; their questions share the engine's batches. Options
    of each call are fields of `selfrag.extensions.search_tags.decoder.Budget`.

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
        path, tokenizer = load_checkpoint(
            name_or_path,
            trust_remote_code=engine_options.get("trust_remote_code", False),
        )
        searcher = Searcher.of(tokenizer, profile, budget)
        return cls(
            searcher,
            ready_engine(engine, path, engine_options),
            load_retriever(retriever, demo=False),
        )

    @overload
    def generate(
        self,
        question: str,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Any,
    ) -> Answer: ...

    @overload
    def generate(
        self,
        question: Sequence[str],
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Any,
    ) -> list[Answer]: ...

    def generate(
        self,
        question: str | Sequence[str],
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Any,
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
        return self._call(question, evidence, options).answers()

    async def agenerate(
        self,
        question: str,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Any,
    ) -> Answer:
        """`generate` of one question for an event loop, which is free meanwhile."""
        return cast(
            Answer, await self._call(question, evidence, options).answers_async()
        )

    def stream(
        self,
        question: str,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Any,
    ) -> Iterator[Segment | Answer]:
        """Return the answer's segment as soon as it is final, then the answer."""
        return self._call(question, evidence, options).pieces()

    def astream(
        self,
        question: str,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Segment | Answer, None]:
        """`stream` for an event loop. Leaving early aborts what is still running."""
        return self._call(question, evidence, options).pieces_async()

    def _call(
        self,
        question: str | Sequence[str],
        evidence: Sequence[Passage] | None,
        options: Mapping[str, Any],
    ) -> Call:
        searcher = replace(
            self.searcher, budget=self.searcher.budget.changed(**options)
        )
        questions = [question] if isinstance(question, str) else question
        decoders = [decode_tags(item, searcher, evidence) for item in questions]
        listed = None if isinstance(question, str) else questions
        return Call(decoders, self.engine, self.retriever, questions=listed)
