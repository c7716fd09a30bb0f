"""`SelfRAG` and `SearchTagModel`: a model, an engine and a retriever behind `generate`. Holds no decoding logic."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeGuard, cast, overload

from retrieval.passage import Passage, Retriever
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, Committed, Event, Service, SharedRetriever, adrive, drive
from selfrag.decoding.options import Length, decode_options
from selfrag.decoding.policy import Decoding, check_names
from selfrag.decoding.search_tags import Budget, Profile, Searcher, decode_tags
from selfrag.decoding.sessions import close as close_engine
from selfrag.decoding.tree import Decoder
from selfrag.engines import select
from selfrag.engines.base import Engine, check_process
from selfrag.errors import DecodingError, UserError
from selfrag.languages import foreign_language
from selfrag.loading import DEMO, load_retriever, load_tokenizer, resolve_model
from selfrag.plugins import part, plugin
from selfrag.prompting import SELFRAG, Layout, Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.untrusted import whole

if TYPE_CHECKING:
    from selfrag.intrinsics.contract import Reflector
    from selfrag.intrinsics.flows.flow import Flow
    from selfrag.intrinsics.state import Message


Turns: TypeAlias = "Sequence[Mapping[str, Any] | Message]"
Scope = Literal["retrieval", "conversation", "alone"]
REFLECTORS = "selfrag.reflectors"
"""Entry points of other packages: each names a function of a `Prompting` that gives a reflector."""
Evidence = Sequence[Passage] | Sequence[Sequence[Passage] | None]


class _Closing:
    """What holds an engine, which is freed at the end of a `with` block."""

    __slots__ = ()
    engine: Engine

    def close(self) -> None:
        """Free the engine."""
        close_engine(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class SelfRAG(_Closing):
    """Answers questions with retrieval on demand, citations and self-criticism.

    Any number of threads and event loops may ask at the same time; their questions share the engine's batches. The
    retriever, and reflectors that run beside the engine, are called by one thread at a time.

    Attributes:
        prompting: tokenizer, vocabulary and prompt layout of the model.
        engine: where tokens come from.
        retriever: any callable `queries, k -> passages`; None if evidence is always given.
        defaults: settings of every call; single calls override single fields.
        reflectors: what else may judge or rewrite, beside the model's own tokens; see `selfrag.intrinsics.reflectors`.
            Those that `Decoding.reflectors` and `Decoding.gates` name take part; one that rewrites queries serves
            conversations.
        english_only: whether answers to questions in other languages say that the model knows English only.
    """

    prompting: Prompting
    engine: Engine
    retriever: Retriever | None = None
    defaults: Decoding = Decoding()  # noqa: RUF009 - frozen value
    reflectors: tuple[Reflector, ...] = ()
    english_only: bool = False
    _shared: SharedRetriever | None = field(default=None, init=False, repr=False, compare=False)
    _sharing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _serving: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _pid: int = field(default_factory=os.getpid, init=False, repr=False, compare=False)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEMO,
        *,
        retriever: Retriever | str | Path | None = None,
        engine: Engine | str | None = None,
        layout: Layout = SELFRAG,
        intrinsics: Sequence[str] | Mapping[str, str | Path | None] = (),
        reflectors: Sequence[Reflector | str] = (),
        **engine_options: Any,
    ) -> SelfRAG:
        """Load a Self-RAG checkpoint.

        Args:
            name_or_path: `demo`, a directory, or a name on the Hugging Face hub such as `selfrag/selfrag_llama2_7b`.
            retriever: a callable `queries, k -> passages`, or the directory of an index. The demo model brings its own.
            engine: `vllm`, `transformers`, the address of a `vllm serve`, a ready engine, or None for the best one
                installed.
            layout: prompt layout of the checkpoint.
            intrinsics: names such as `query_rewrite` to have on this model as reflectors, or intrinsics with what
                judges each: `tokens`, `adapter`, `prompt`, `overlap`, .. or the folder of a LoRA adapter. A name may
                have it after a dot, `answerability.overlap`; without it reflection tokens judge where they can.
            reflectors: further ones, see `SelfRAG`; or names: an entry point of `selfrag.reflectors`, or `module:name`,
                of a function of a `Prompting` that gives one.
            engine_options: fields of the engine's configuration, such as `max_model_len`.

        Raises:
            UserError: the model or index cannot be used; the message says what to do.
        """
        named = part("reflectors") if intrinsics else None
        if named is not None:
            folders = named.adapters_of(intrinsics, name_or_path)
            if folders and (engine is None or isinstance(engine, str)) and not select.is_remote(engine):
                engine_options["adapters"] = {**engine_options.get("adapters", {}), **folders}
        path, tokenizer = _checkpoint(name_or_path, engine_options)
        prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer), layout)
        found = load_retriever(retriever, demo=name_or_path == DEMO)
        ready = _engine(engine, path, engine_options)
        own = named.on_engine(ready, tokenizer, intrinsics, name_or_path, prompting) if named is not None else ()
        given = [plugin(REFLECTORS, one)(prompting) if isinstance(one, str) else one for one in reflectors]
        return cls(prompting, ready, found, reflectors=(*own, *given), english_only=name_or_path == DEMO)

    @overload
    def generate(
        self, question: str | Turns, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Answer: ...

    @overload
    def generate(
        self, question: Sequence[str | Turns], *, evidence: Evidence | None = None, **options: Any
    ) -> list[Answer]: ...

    def generate(
        self,
        question: str | Turns | Sequence[str | Turns],
        *,
        evidence: Evidence | None = None,
        flow: Flow | str | None = None,
        rewrite_scope: Scope = "retrieval",
        **options: Any,
    ) -> Answer | list[Answer]:
        """Answer one question or conversation, or many; many share the engine's batches.

        Args:
            question: a question; a conversation, as a list of `{"role": .., "content": ..}` that ends with the user's
                turn; or a list of either.
            evidence: passages to use in place of searching; for a list of questions, one list for each, or None for a
                question that is to be searched for.
            flow: how: a `selfrag.intrinsics.flows.Flow`, or `none`, `qr`, `ad`, `qr+ad` with the reflectors at hand.
                By default a conversation of several user turns searches with a rewrite if a reflector writes one.
            rewrite_scope: what a rewrite changes, see `selfrag.intrinsics.flows.Rewrite`.
            options: fields of `Decoding`, or `decoding=` a whole one.

        Returns:
            An answer, or a list in the order of the questions. In a list a question that failed has `answer.error` set.

        Raises:
            UserError: a wrong option, or the one question failed.
        """
        return self._asked(question, evidence, flow, rewrite_scope, options).answers()

    @overload
    async def agenerate(
        self, question: str | Turns, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Answer: ...

    @overload
    async def agenerate(
        self, question: Sequence[str | Turns], *, evidence: Evidence | None = None, **options: Any
    ) -> list[Answer]: ...

    async def agenerate(
        self,
        question: str | Turns | Sequence[str | Turns],
        *,
        evidence: Evidence | None = None,
        flow: Flow | str | None = None,
        rewrite_scope: Scope = "retrieval",
        **options: Any,
    ) -> Answer | list[Answer]:
        """`generate` for an event loop, which is free meanwhile. Cancelling aborts what is still running."""
        return await self._asked(question, evidence, flow, rewrite_scope, options).answers_async()

    def choose(
        self,
        question: str,
        choices: Sequence[str],
        *,
        evidence: Sequence[Passage] | None = None,
        length: Length = "none",
        **options: Any,
    ) -> Answer:
        """Answer with one of `choices`, by their exact probabilities and the critique after each passage.

        Args:
            question: instruction with its input.
            choices: at least two distinct texts, as the model would write them.
            evidence: passages to use in place of searching.
            length: `none` compares whole probabilities, `tokens` and `characters` log-probabilities per token or
                character, for texts of different lengths.
            options: fields of `Decoding`.
        """
        policy = self._policy(options)
        how: dict[str, Any] = {"length": length, "most_watched": self.engine.limits.max_watch}
        given = _evidence(evidence)
        decoder = decode_options(question, choices, self.prompting, policy, passages=given, **how)
        asked = _Asked([decoder], self.engine, self._search, notes=[self._note(str(question))])
        return cast(Answer, asked.answers())

    def stream(
        self,
        question: str | Turns,
        *,
        evidence: Sequence[Passage] | None = None,
        flow: Flow | str | None = None,
        rewrite_scope: Scope = "retrieval",
        **options: Any,
    ) -> Iterator[Segment | Answer]:
        """Segments as soon as they are final, then the answer. Leaving early aborts what is still running.

        The answer counts: stages of a flow after the writing may change it.
        """
        return self._asked(_one(question), evidence, flow, rewrite_scope, options).pieces()

    def astream(
        self,
        question: str | Turns,
        *,
        evidence: Sequence[Passage] | None = None,
        flow: Flow | str | None = None,
        rewrite_scope: Scope = "retrieval",
        **options: Any,
    ) -> AsyncGenerator[Segment | Answer, None]:
        """`stream` for an event loop, which is free meanwhile. Leaving early aborts what is still running."""
        return self._asked(_one(question), evidence, flow, rewrite_scope, options).pieces_async()

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Up to `k` passages for each query, best first; the search is shared with questions that run.

        Raises:
            UserError: there is no retriever, or it failed.
        """
        shared = self._search
        if shared is None:
            raise UserError("no retriever: pass retriever=..")
        return shared(queries, k)

    def _policy(self, options: dict[str, Any]) -> Decoding:
        check_process(self._pid)
        base = options.pop("decoding", self.defaults)
        if not isinstance(base, Decoding):
            raise UserError(f"decoding={base!r:.80}: give a selfrag.Decoding, or its fields one by one")
        check_names(options)
        return replace(base, **options)

    def _asked(
        self, question: Any, evidence: Any, flow: Flow | str | None, scope: Scope, options: dict[str, Any]
    ) -> _Asked:
        """One question or conversation, or many, as decoders."""
        policy = self._policy(options)
        single = isinstance(question, str) or _is_conversation(question)
        if not single and not isinstance(question, Sequence):
            raise UserError(f"the question must be text or a list of texts, not {type(question).__name__}")
        questions = [question] if single else question
        given = [_evidence(evidence)] if single else _evidence_lists(evidence, len(question))
        how = None
        if self.reflectors or flow is not None or any(map(_is_conversation, questions)):
            how = part("conversation")(self.prompting, policy, self.engine, self.reflectors, flow, scope)
        services = {} if how is None else self._alone(how.services())
        critics = () if how is None else how.critics

        def decoder(one: Any, passages: Sequence[Passage] | None) -> Decoder:
            if how is not None and (flow is not None or _is_conversation(one)):
                found: Decoder = how.decoder(one, passages)
                return found
            text = whole(one) if isinstance(one, str) else one
            return decode(text, self.prompting, policy, passages=passages, critics=critics)

        decoders = [decoder(one, passages) for one, passages in zip(questions, given, strict=True)]
        texts = tuple(map(_last_question, questions))
        notes = [self._note(text) for text in texts]
        return _Asked(decoders, self.engine, self._search, services, policy, None if single else texts, notes)

    def _note(self, question: str) -> str | None:
        """Return what a reader should know of an answer to a question in this language."""
        language = foreign_language(question) if self.english_only else None
        return None if language is None else f"this model answers in English only; the question looks like {language}"

    @property
    def _search(self) -> Retriever | None:
        """The present retriever, shared by all threads. A question that runs keeps the one that it began with."""
        retriever = self.retriever
        if retriever is None:
            return None
        with self._sharing:
            if self._shared is None or self._shared.retriever is not retriever:
                self._shared = SharedRetriever(retriever)
            return self._shared

    def _alone(self, services: Mapping[str, Service]) -> dict[str, Service]:
        """Services of reflectors, each called by one thread at a time: they may share a model."""

        def alone(service: Service, payloads: Sequence[Any]) -> Sequence[Any]:
            with self._serving:
                return service(payloads)

        return {name: partial(alone, service) for name, service in services.items()}


@dataclass(slots=True)
class SearchTagModel(_Closing):
    """A model that searches by writing tags: answers questions by turns and searches, as Search-R1 and its relatives.

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
        path, tokenizer = _checkpoint(name_or_path, engine_options)
        searcher = Searcher.of(tokenizer, profile, budget)
        return cls(searcher, _engine(engine, path, engine_options), load_retriever(retriever, demo=False))

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
        return self._asked(question, evidence, options).answers()

    async def agenerate(self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any) -> Answer:
        """`generate` of one question for an event loop, which is free meanwhile."""
        return cast(Answer, await self._asked(question, evidence, options).answers_async())

    def stream(
        self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> Iterator[Segment | Answer]:
        """The answer's segment as soon as it is final, then the answer."""
        return self._asked(question, evidence, options).pieces()

    def astream(
        self, question: str, *, evidence: Sequence[Passage] | None = None, **options: Any
    ) -> AsyncGenerator[Segment | Answer, None]:
        """`stream` for an event loop. Leaving early aborts what is still running."""
        return self._asked(question, evidence, options).pieces_async()

    def _asked(
        self, question: str | Sequence[str], evidence: Sequence[Passage] | None, options: Mapping[str, Any]
    ) -> _Asked:
        searcher = replace(self.searcher, budget=self.searcher.budget.changed(**options))
        questions = [question] if isinstance(question, str) else question
        decoders = [decode_tags(one, searcher, evidence) for one in questions]
        listed = None if isinstance(question, str) else questions
        return _Asked(decoders, self.engine, self.retriever, questions=listed)


def _checkpoint(name_or_path: str | Path, options: Mapping[str, Any]) -> tuple[Path, Any]:
    """Directory and tokenizer of a checkpoint."""
    path = resolve_model(name_or_path)
    return path, load_tokenizer(path, trust_remote_code=options.get("trust_remote_code", False))


def _engine(given: Engine | str | None, path: Path, options: Mapping[str, Any]) -> Engine:
    """A ready engine as it is; else one that is loaded by name."""
    return select.load_engine(given, path, **options) if given is None or isinstance(given, str) else given


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call: one question or many."""

    decoders: Sequence[Decoder]  # of its questions
    engine: Engine
    retriever: Retriever | None
    services: Mapping[str, Service] = field(default_factory=dict)  # that the decoders need
    policy: Decoding = Decoding()  # noqa: RUF009 - frozen value
    # of a list, for reports; None for a single question, whose failure is raised
    questions: Sequence[str] | None = None
    notes: Sequence[str | None] = ()  # of each question; none where no answer has one

    def answers(self) -> Answer | list[Answer]:
        """What the caller gets when all is done."""
        return self._collected(drive(self.decoders, self.engine, self.retriever, services=self.services))

    async def answers_async(self) -> Answer | list[Answer]:
        """`answers` for an event loop."""
        events = adrive(self.decoders, self.engine, self.retriever, services=self.services)
        return self._collected([event async for event in events])

    def pieces(self) -> Iterator[Segment | Answer]:
        """Segments as they come, then the answer."""
        for event in drive(self.decoders, self.engine, self.retriever, services=self.services):
            yield event.segment if isinstance(event, Committed) else self._noted(_answer(event), 0)

    async def pieces_async(self) -> AsyncGenerator[Segment | Answer, None]:
        """`pieces` for an event loop."""
        async with aclosing(adrive(self.decoders, self.engine, self.retriever, services=self.services)) as events:
            async for event in events:
                yield event.segment if isinstance(event, Committed) else self._noted(_answer(event), 0)

    def _collected(self, events: Iterable[Event]) -> Answer | list[Answer]:
        ends = {event.index: event for event in events if not isinstance(event, Committed)}
        if self.questions is None:
            return self._noted(_answer(ends[0]), 0)
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


def _answer(end: Answered | Broken) -> Answer:
    """The answer to a single question; where there is none, why is raised."""
    if isinstance(end, Broken):
        raise end.error
    if end.answer.error is not None:
        raise DecodingError(end.answer.error)
    return end.answer


def _is_conversation(given: object) -> TypeGuard[Turns]:
    """Whether this is one list of turns, not a list of questions or conversations."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        return False
    return not (isinstance(given[0], str) or (isinstance(given[0], Sequence) and not hasattr(given[0], "role")))


def _last_question(given: object) -> str:
    """The question of a question or conversation, for reports; empty if there is none."""
    if isinstance(given, str):
        return whole(given)
    if isinstance(given, Sequence):
        for turn in reversed(given):
            if isinstance(turn, Mapping) and turn.get("role") == "user" and isinstance(turn.get("content"), str):
                return whole(turn["content"])
    return ""


def _one(question: Any) -> Any:
    """The question of a stream; a list of several cannot be streamed."""
    if isinstance(question, str) or _is_conversation(question) or not isinstance(question, Sequence):
        return question
    raise UserError("stream takes one question or conversation; generate takes a list")


def _evidence(given: Any) -> tuple[Passage, ...] | None:
    """Passages for one question, checked; None to search."""
    if given is None:
        return None
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UserError(f"evidence must be a list of selfrag.Passage, not {type(given).__name__}")
    passages = tuple(given)
    for item in passages:
        if not isinstance(item, Passage):
            raise UserError(f"evidence must be a list of selfrag.Passage, not of {type(item).__name__}")
    return passages


def _evidence_lists(given: Any, questions: int) -> list[tuple[Passage, ...] | None]:
    """Evidence for each of a list of questions."""
    if given is None:
        return [None] * questions
    if not isinstance(given, Sequence) or len(given) != questions:
        count = len(given) if isinstance(given, Sequence) else "something that is no list"
        raise UserError(f"evidence for a list of questions is one list for each: {count} for {questions} questions")
    return [_evidence(passages) for passages in given]
