"""`SelfRAG`: a model, an engine and a retriever behind `generate`, `choose` and `stream`. Holds no decoding logic."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast, overload

from retrieval.passage import Passage, Retriever
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, Committed, Event, Service, SharedRetriever, adrive, drive
from selfrag.decoding.options import Length, decode_options
from selfrag.decoding.policy import Decoding, check_names
from selfrag.decoding.sessions import close as close_engine
from selfrag.decoding.tree import Decoder
from selfrag.engines import select
from selfrag.engines.base import Engine, check_process
from selfrag.errors import UserError
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


@dataclass(slots=True)
class SelfRAG:
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
    """

    prompting: Prompting
    engine: Engine
    retriever: Retriever | None = None
    defaults: Decoding = Decoding()  # noqa: RUF009 - frozen value
    reflectors: tuple[Reflector, ...] = ()
    _shared: SharedRetriever = field(init=False, repr=False, compare=False)
    _serving: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _pid: int = field(default_factory=os.getpid, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._shared = SharedRetriever(lambda queries, k: cast(Retriever, self.retriever)(queries, k))

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
        path = resolve_model(name_or_path)
        tokenizer = load_tokenizer(path, trust_remote_code=engine_options.get("trust_remote_code", False))
        prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer), layout)
        found = load_retriever(retriever, demo=name_or_path == DEMO)
        ready = (
            select.load_engine(engine, path, **engine_options) if engine is None or isinstance(engine, str) else engine
        )
        own = named.on_engine(ready, tokenizer, intrinsics, name_or_path, prompting) if named is not None else ()
        given = [plugin(REFLECTORS, one)(prompting) if isinstance(one, str) else one for one in reflectors]
        return cls(prompting, ready, found, reflectors=(*own, *given))

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
        asked = self._asked(question, evidence, flow, rewrite_scope, options)
        return asked.answers(drive(asked.decoders, self.engine, self._search, services=asked.services))

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
        asked = self._asked(question, evidence, flow, rewrite_scope, options)
        events = adrive(asked.decoders, self.engine, self._search, services=asked.services)
        return asked.answers([event async for event in events])

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
        given = _evidence(evidence)
        most = self.engine.limits.max_watch
        decoder = decode_options(
            question, choices, self.prompting, policy, passages=given, length=length, most_watched=most
        )
        chosen = _Asked([decoder], {}, policy).answers(drive([decoder], self.engine, self._search))
        return cast(Answer, chosen)

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
        asked = self._asked(_one(question), evidence, flow, rewrite_scope, options)

        def pieces() -> Iterator[Segment | Answer]:
            for event in drive(asked.decoders, self.engine, self._search, services=asked.services):
                yield _piece(event)

        return pieces()

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
        asked = self._asked(_one(question), evidence, flow, rewrite_scope, options)

        async def pieces() -> AsyncGenerator[Segment | Answer, None]:
            events = adrive(asked.decoders, self.engine, self._search, services=asked.services)
            async with aclosing(events):
                async for event in events:
                    yield _piece(event)

        return pieces()

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Up to `k` passages for each query, best first; the search is shared with questions that run.

        Raises:
            UserError: there is no retriever, or it failed.
        """
        if self.retriever is None:
            raise UserError("no retriever: pass retriever=..")
        return self._shared(queries, k)

    def close(self) -> None:
        """Free the engine."""
        close_engine(self.engine)

    def __enter__(self) -> SelfRAG:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        return _Asked(decoders, services, policy, None if single else tuple(map(_last_question, questions)))

    @property
    def _search(self) -> Retriever | None:
        return None if self.retriever is None else self._shared

    def _alone(self, services: Mapping[str, Service]) -> dict[str, Service]:
        """Services of reflectors, each called by one thread at a time: they may share a model."""

        def alone(service: Service, payloads: Sequence[Any]) -> Sequence[Any]:
            with self._serving:
                return service(payloads)

        return {name: partial(alone, service) for name, service in services.items()}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call of `SelfRAG`."""

    decoders: Sequence[Decoder]  # of its questions
    services: Mapping[str, Service]  # that these need
    policy: Decoding  # settings
    # of a list, for reports; None for a single question, whose failure is raised
    questions: Sequence[str] | None = None

    def answers(self, events: Iterable[Event]) -> Answer | list[Answer]:
        """What the caller gets of all that happened."""
        ends = {event.index: event for event in events if not isinstance(event, Committed)}
        if self.questions is None:
            if isinstance(ends[0], Broken):
                raise ends[0].error
            return ends[0].answer
        listed = [ends[index] for index in range(len(self.questions))]
        return [
            end.answer if isinstance(end, Answered) else Answer.failed(question, self.policy, end.error)
            for end, question in zip(listed, self.questions, strict=True)
        ]


def _piece(event: Event) -> Segment | Answer:
    if isinstance(event, Broken):
        raise event.error
    return event.segment if isinstance(event, Committed) else event.answer


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
