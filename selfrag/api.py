"""`SelfRAG`: a model, an engine and a retriever behind `generate`. Holds no decoding logic."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    TypeAlias,
    TypeGuard,
    Unpack,
    cast,
    overload,
)

from retrieval.passage import Passage, Retriever
from selfrag.common.errors import UserError, count_of
from selfrag.common.untrusted import replace_surrogates
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding, RewriteScope, check_names
from selfrag.decoding.token_writer import DecodingModel
from selfrag.decoding.tree import Decoder
from selfrag.engines import is_remote, ready_engine
from selfrag.engines.base import Engine, NoEngine, check_process
from selfrag.loading import (
    DEMO,
    check_chat_template,
    check_index,
    load_checkpoint,
    load_retriever,
    model_address,
)
from selfrag.prompting import SELFRAG, Layout, Prompting
from selfrag.reflection.vocabulary import has_reflection_tokens
from selfrag.runtime import Call, OwnsEngine
from selfrag.runtime.batching import SharedRetriever

if TYPE_CHECKING:
    from selfrag.decoding.keywords import DecodingFields
    from selfrag.decoding.option_scoring import Length
    from selfrag.intrinsics.flows.flow import Flow
    from selfrag.intrinsics.named import JudgeNames
    from selfrag.judges.conversation import Conversation, Passages
    from selfrag.reflection.findings import Reflection
    from selfrag.reflection.inputs import Message
    from selfrag.reflection.judge import Judge

    class CallOptions(DecodingFields, total=False):
        """Fields of `Decoding`, and how a call goes on."""

        flow: Flow | str | None
        rewrite_scope: RewriteScope


Turns: TypeAlias = "Sequence[Mapping[str, Any] | Message]"
CallerEvidence = Sequence[Passage] | Sequence[Sequence[Passage] | None]
_LAYOUT_TOKENS = 16
"""Tokens that a layout puts around a turn of a conversation, at most."""
_LONG_EVIDENCE = 50_000
"""Characters of evidence beyond which an event loop leaves the decoders to threads: tokens of 1.5 MB take seconds."""


@dataclass(slots=True)
class SelfRAG(OwnsEngine):
    """Answers questions with retrieval on demand, citations and self-criticism.

    Any number of threads and event loops may ask at the same time; their questions share the engine's batches. The
    retriever, and judges that run beside the engine, are called by one thread at a time.

    Attributes:
        prompting: tokenizer, vocabulary and prompt layout of a model with reflection tokens, or a
            `selfrag.judges.chat_model.ChatModel`.
        engine: where tokens come from.
        retriever: any callable `queries, k -> passages`; None if evidence is always given.
        defaults: settings of every call; single calls override single fields.
        judges: what else may judge or rewrite, beside the model's own tokens; see `selfrag.judges`. Those that
            `Decoding.judges` and `Decoding.guardrails` name take part; one that rewrites queries serves conversations.
        english_only: whether answers to questions in other languages say that the model knows English only.

    Example:
        >>> from selfrag import Passage
        >>> with SelfRAG.from_pretrained("demo", engine="transformers") as rag:
        ...     faust = Passage("faust", "Faust is a tragedy by Johann Wolfgang von Goethe.", "Faust")
        ...     print(rag.generate("Who wrote Faust?", evidence=[faust], max_segments=1))
        Johann Wolfgang von Goethe [1]
        [1] Faust
    """

    prompting: DecodingModel
    engine: Engine
    retriever: Retriever | None = None
    defaults: Decoding = Decoding()  # noqa: RUF009 - frozen value
    judges: tuple[Judge, ...] = ()
    english_only: bool = False
    _shared: SharedRetriever | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _sharing: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )
    _pid: int = field(default_factory=os.getpid, init=False, repr=False, compare=False)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEMO,
        *,
        retriever: Retriever | str | Path | None = None,
        engine: Engine | str | None = None,
        layout: Layout = SELFRAG,
        judges: JudgeNames = (),
        **engine_options: Any,
    ) -> SelfRAG:
        """Load a Self-RAG checkpoint, or any chat model, which is then asked to reflect by prompts.

        Args:
            name_or_path: `demo`, a directory, a GGUF file, or a name on the Hugging Face hub such as
                `selfrag/selfrag_llama2_7b` or `Qwen/Qwen3-4B`; or `NAME@URL`, a chat model on any
                OpenAI-compatible server.
            retriever: a callable `queries, k -> passages`, or the directory of an index. The demo model brings its own.
            engine: `vllm`, `transformers`, the address of a `vllm serve`, a ready engine, or None for the best one
                installed.
            layout: prompt layout of a Self-RAG checkpoint; a chat model has its chat template.
            judges: judges, or names of some: an intrinsic of this model such as `query_rewrite`, perhaps with who
                judges it, `answerability.overlap`; `token_issup`; or a judge with a model of its own,
                `NAME=nli:MODEL`, see `selfrag.intrinsics.named`. Also intrinsics with who judges each: `tokens`,
                `adapter`, `prompt`, `overlap`, .. or the folder of a LoRA adapter.
            engine_options: fields of the engine's configuration, such as `max_model_len`; of a model at an address
                those of `selfrag.judges.endpoint.executor_at`, such as `api_key_env`.

        Raises:
            UserError: the model or index cannot be used; the message says what to do.
        """
        if isinstance(retriever, str | Path):
            check_index(str(retriever))
        if (address := model_address(name_or_path)) is not None:
            if engine is not None:
                raise UserError(
                    f"{name_or_path} is asked by its address; leave the engine out"
                )
            return cls._at_address(
                *address, load_retriever(retriever, demo=False), judges, engine_options
            )
        if judges:
            from selfrag.intrinsics.named import adapters_of, on_engine

            folders = adapters_of(judges, name_or_path)
            if (
                folders
                and (engine is None or isinstance(engine, str))
                and not is_remote(engine)
            ):
                engine_options["adapters"] = {
                    **engine_options.get("adapters", {}),
                    **folders,
                }
        path, tokenizer = load_checkpoint(
            name_or_path,
            trust_remote_code=engine_options.get("trust_remote_code", False),
        )
        reflects = has_reflection_tokens(tokenizer)
        if not reflects:
            check_chat_template(tokenizer, path)
            # Refuses a tokenizer without words for the labels before an engine is loaded.
            _chat_model(None, tokenizer)
        searched = load_retriever(retriever, demo=name_or_path == DEMO)
        ready = ready_engine(engine, path, engine_options)
        prompting: Prompting | None = None
        if reflects:
            prompting = Prompting.from_tokenizer(tokenizer, layout)
        loaded: tuple[Judge, ...] = ()
        if judges:
            loaded = on_engine(ready, tokenizer, judges, name_or_path, prompting)
        model = prompting or _chat_model(ready, tokenizer)
        return cls(
            model, ready, searched, judges=loaded, english_only=name_or_path == DEMO
        )

    @classmethod
    def _at_address(
        cls,
        name: str,
        url: str,
        retriever: Retriever | None,
        judges: JudgeNames,
        options: Mapping[str, Any],
    ) -> SelfRAG:
        """Return a chat model on a server."""
        from selfrag.intrinsics.named import on_endpoint
        from selfrag.judges.chat_model import ChatModel
        from selfrag.judges.endpoint import executor_at

        executor = executor_at(name, url, **options)
        try:
            model = ChatModel.on(executor)
            loaded = on_endpoint(executor, judges) if judges else ()
        except UserError:
            executor.close()
            raise
        engine = executor.engine or NoEngine(executor.close)
        return cls(model, engine, retriever, judges=loaded)

    @overload
    def generate(  # type: ignore[overload-overlap] # a text is a sequence of texts, too
        self,
        question: str | Turns,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Unpack[CallOptions],
    ) -> Answer: ...

    @overload
    def generate(
        self,
        question: Sequence[str | Turns],
        *,
        evidence: CallerEvidence | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Answer]: ...

    def generate(
        self,
        question: str | Turns | Sequence[str | Turns],
        *,
        evidence: CallerEvidence | None = None,
        **options: Unpack[CallOptions],
    ) -> Answer | list[Answer]:
        """Answer one question or conversation, or many; many share the engine's batches.

        Args:
            question: a question; a conversation, as a list of `{"role": .., "content": ..}` that ends with the user's
                turn; or a list of either.
            evidence: passages to use in place of searching; for a list of questions, one list for each, or None for a
                question that is to be searched for.
            options: fields of `Decoding`, or `decoding=` a whole one. `flow=` says how: a
                `selfrag.intrinsics.flows.Flow`, or `none`, `qr`, `ad`, `qr+ad` with the judges at hand; by default a
                conversation of several user turns searches with a rewrite if a judge writes one. `rewrite_scope=` says
                what a rewrite changes, see `selfrag.intrinsics.flows.Rewrite`.

        Returns:
            An answer, or a list in the order of the questions. In a list a question that failed has `answer.error` set.

        Raises:
            UserError: a wrong option, or the one question failed.
        """
        return self._call(question, evidence, options).answers()

    @overload
    async def agenerate(  # type: ignore[overload-overlap] # a text is a sequence of texts, too
        self,
        question: str | Turns,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Unpack[CallOptions],
    ) -> Answer: ...

    @overload
    async def agenerate(
        self,
        question: Sequence[str | Turns],
        *,
        evidence: CallerEvidence | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Answer]: ...

    async def agenerate(
        self,
        question: str | Turns | Sequence[str | Turns],
        *,
        evidence: CallerEvidence | None = None,
        **options: Unpack[CallOptions],
    ) -> Answer | list[Answer]:
        """`generate` for an event loop, which is free meanwhile. Cancelling aborts what is still running."""
        return await self._call(question, evidence, options).answers_async()

    def choose(
        self,
        question: str,
        choices: Sequence[str],
        *,
        evidence: Sequence[Passage] | None = None,
        length: Length = "none",
        **options: Unpack[DecodingFields],
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
        from selfrag.decoding.options import decode_options

        policy = self._policy(options)
        passages = _evidence(evidence)
        decoder = decode_options(
            question,
            choices,
            self.prompting,
            policy,
            passages=passages,
            length=length,
            most_watched=self.engine.limits.max_watch,
        )
        notes = [self._note(str(question))]
        call = Call([decoder], self.engine, self._search, notes=notes)
        return cast(Answer, call.answers())

    def stream(
        self,
        question: str | Turns,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Unpack[CallOptions],
    ) -> Iterator[Segment | Answer]:
        """Segments as soon as they are final, then the answer. Leaving early aborts what is still running.

        The answer counts: stages of a flow after the writing may change it.
        """
        return self._call(_single_question(question), evidence, options).pieces()

    def astream(
        self,
        question: str | Turns,
        *,
        evidence: Sequence[Passage] | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Segment | Answer, None]:
        """`stream` for an event loop, which is free meanwhile. Leaving early aborts what is still running."""
        return self._call(_single_question(question), evidence, options).pieces_async()

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Return up to `k` passages for each query, best first; the search is shared with questions that run.

        Raises:
            UserError: there is no retriever, or it failed.
        """
        shared = self._search
        if shared is None:
            raise UserError("no retriever: pass retriever=..")
        return shared(queries, k)

    def recent_turns(
        self, turns: Sequence[Mapping[str, str]], decoding: Decoding
    ) -> list[Mapping[str, str]]:
        """Return a conversation without its oldest turns, so that evidence and an answer fit beside it.

        What the system says first and the last turn, which is the question, always stay.
        """
        context = self.engine.limits.max_model_len
        answer_tokens = min(
            decoding.answer_tokens, decoding.max_segments * decoding.segment_tokens
        )
        reserved = min(decoding.passage_tokens + answer_tokens, context // 2)
        *earlier, question = turns
        system = list(
            takewhile(lambda turn: turn["role"] in ("system", "developer"), earlier)
        )
        room = context - reserved - sum(map(self._turn_tokens, (*system, question)))
        recent: list[Mapping[str, str]] = []
        for turn in reversed(earlier[len(system) :]):
            room -= self._turn_tokens(turn)
            if room < 0:
                break
            recent.insert(0, turn)
        # an answer means little without its question
        while recent and recent[0]["role"] != "user":
            recent.pop(0)
        return [*system, *recent, question]

    def _turn_tokens(self, turn: Mapping[str, str]) -> int:
        return len(self.prompting.codec.encode(turn["content"])) + _LAYOUT_TOKENS

    def judge(
        self,
        judge: Judge | str,
        conversation: Conversation,
        passages: Passages | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> Reflection:
        """Ask a judge about one conversation.

        Args:
            judge: any, or the name of one of `judges`, or `token_isrel`, `token_issup`, `token_isuse`.
            conversation: a question, a list of turns, or an `Answer`.
            passages: what it is judged against; for an `Answer` its citations.
            arguments: what the judge asks for, such as `requirement`.

        Returns:
            Its judgments; `reason` says why there is none.

        Raises:
            UserError: there is no such judge, or the input makes no sense.
        """
        from selfrag.intrinsics.named import find_judge
        from selfrag.judges.asking import judge as ask

        if isinstance(judge, str):
            judge = find_judge(judge, self.judges, self.prompting)
        return ask(judge, conversation, passages, arguments, engine=self.engine)

    def _policy(self, options: Mapping[str, Any]) -> Decoding:
        check_process(self._pid)
        changes = dict(options)
        base = changes.pop("decoding", self.defaults)
        if not isinstance(base, Decoding):
            raise UserError(
                f"decoding={base!r:.80}: give a selfrag.Decoding, or its fields one by one"
            )
        check_names(changes)
        return replace(base, **changes)

    def _call(
        self,
        question: Any,
        evidence: Any,
        options: Mapping[str, Any],
    ) -> Call:
        """Return the call of one question or conversation, or of many."""
        fields = dict(options)
        flow = fields.pop("flow", None)
        scope = fields.pop("rewrite_scope", "retrieval")
        policy = self._policy(fields)
        single = isinstance(question, str) or _is_conversation(question)
        if not single and not isinstance(question, Sequence):
            raise UserError(
                f"the question must be text or a list of texts, not {type(question).__name__}"
            )
        questions = [question] if single else question
        passages = [_evidence(evidence)] if single else None
        if passages is None:
            passages = _evidence_lists(evidence, len(question))
        of_conversations: ConversationDecoders | None = None
        judges: tuple[Judge, ...] = ()
        if self.judges or flow is not None or any(map(_is_conversation, questions)):
            from selfrag.intrinsics.flows.flow import ConversationDecoders
            from selfrag.judges.external import beside

            judges = beside(self.judges, self.engine)
            of_conversations = ConversationDecoders(
                self.prompting, policy, self.engine, judges, flow, scope
            )

        decoders: list[Decoder] = []
        for item, evidence_of_item in zip(questions, passages, strict=True):
            needs_conversation = flow is not None or _is_conversation(item)
            if of_conversations is not None and needs_conversation:
                decoders.append(of_conversations.decoder(item, evidence_of_item))
                continue
            text = replace_surrogates(item) if isinstance(item, str) else item
            decoders.append(
                decode(
                    text,
                    self.prompting,
                    policy,
                    passages=evidence_of_item,
                    judges=judges,
                )
            )
        texts = tuple(map(_last_question, questions))
        notes = [self._note(text) for text in texts]
        return Call(
            decoders,
            self.engine,
            self._search,
            policy,
            None if single else texts,
            notes,
            in_threads=_is_long(passages),
        )

    def _note(self, question: str) -> str | None:
        """Return what a reader should know of an answer to a question in this language."""
        if not self.english_only:
            return None
        from selfrag.languages import foreign_language

        language = foreign_language(question)
        if language is None:
            return None
        return f"this model answers in English only; the question looks like {language}"

    @property
    def _search(self) -> Retriever | None:
        """Return the present retriever, shared by all threads. A running question keeps the one that it began with."""
        retriever = self.retriever
        if retriever is None:
            return None
        with self._sharing:
            if self._shared is None or self._shared.retriever is not retriever:
                self._shared = SharedRetriever(retriever)
            return self._shared


def _chat_model(engine: Engine | None, tokenizer: Any) -> DecodingModel:
    """Return a model without reflection tokens as one that reflects by prompts."""
    from selfrag.judges.chat_model import ChatModel  # most models need none of it
    from selfrag.judges.engine import EngineExecutor

    return ChatModel.on(EngineExecutor(engine, tokenizer))


def _is_conversation(question: object) -> TypeGuard[Turns]:
    """Return whether this is one list of turns, not a list of questions or conversations."""
    if isinstance(question, str) or not isinstance(question, Sequence) or not question:
        return False
    first = question[0]
    if isinstance(first, str):
        return False
    return hasattr(first, "role") or not isinstance(first, Sequence)


def _last_question(question: object) -> str:
    """Return the question of a question or conversation, for reports; empty if there is none."""
    if isinstance(question, str):
        return replace_surrogates(question)
    if not isinstance(question, Sequence):
        return ""
    for turn in reversed(question):
        if isinstance(turn, Mapping) and turn.get("role") == "user":
            content = turn.get("content")
            if isinstance(content, str):
                return replace_surrogates(content)
    return ""


def _single_question(question: Any) -> Any:
    """Return the question of a stream; a list of several cannot be streamed."""
    if (
        isinstance(question, str)
        or _is_conversation(question)
        or not isinstance(question, Sequence)
    ):
        return question
    raise UserError("stream takes one question or conversation; generate takes a list")


def _evidence(evidence: Any) -> tuple[Passage, ...] | None:
    """Return the passages for one question, checked; None to search."""
    if evidence is None:
        return None
    if not isinstance(evidence, Iterable) or isinstance(evidence, str):
        raise UserError(
            f"evidence must be a list of selfrag.Passage, not {type(evidence).__name__}"
        )
    passages = tuple(evidence)
    for item in passages:
        if not isinstance(item, Passage):
            raise UserError(
                f"evidence must be a list of selfrag.Passage, not of {type(item).__name__}"
            )
    return passages


def _is_long(evidence: Iterable[Sequence[Passage] | None]) -> bool:
    """Return whether reading the evidence into tokens takes long."""
    characters = 0
    for passages in evidence:
        for passage in passages or ():
            characters += len(passage.text)
    return characters > _LONG_EVIDENCE


def _evidence_lists(evidence: Any, questions: int) -> list[tuple[Passage, ...] | None]:
    """Return the evidence for each of a list of questions."""
    if evidence is None:
        return [None] * questions
    count: object = "something that is no list"
    if isinstance(evidence, Sequence):
        count = len(evidence)
    if count != questions:
        raise UserError(
            f"evidence for a list of questions is one list for each: {count} for {count_of(questions, 'questions')}"
        )
    return list(map(_evidence, evidence))
