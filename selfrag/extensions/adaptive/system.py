"""Methods as systems of `selfrag eval`, and as policies of `ask` and `serve`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from selfrag.extensions.adaptive.adaptive_rag import AdaptiveRAG
from selfrag.extensions.adaptive.crag import CRAG, SelfCRAG
from selfrag.extensions.adaptive.dragin import Dragin
from selfrag.extensions.adaptive.flare import Flare
from selfrag.extensions.adaptive.ircot import IRCoT
from selfrag.extensions.adaptive.iter_retgen import IterRetGen
from selfrag.extensions.adaptive.method import Always, Never, RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, Reader, prompts
from selfrag.extensions.adaptive.seakr import SeaKR
from selfrag.extensions.adaptive.self_ask import SelfAsk
from selfrag.extensions.adaptive.uncertainty import Entropy, MaxProbability
from selfrag.interface import (
    Answer,
    Call,
    ChatModel,
    Decoder,
    Decoding,
    DecodingError,
    Engine,
    Executor,
    Item,
    OwnsEngine,
    Passage,
    Retriever,
    Segment,
    SelfRAG,
    SharedRetriever,
    Task,
    UserError,
    model_of,
    unknown_name,
)

_READING = ("passages", "passage_tokens")
"""Settings of the reader, which all methods have."""


@dataclass(frozen=True, slots=True)
class AdaptiveSystem:
    """A method on a model. Thoughts and queries have a budget of their own; the task's is that of the answer."""

    name: str  # of the method
    method: RetrievalMethod
    reader: Reader
    live: bool = False  # whether it searches by itself; else every search gets the item's passages
    cites_all: bool = False

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Answer an item in words."""
        if item.options and not task.written:
            raise DecodingError(
                f"{self.name} answers in words; it has no multiple choice"
            )
        work = QuestionWork(
            item.query or item.instruction,
            self.reader,
            task.new_tokens,
            task.hint,
            None if self.live else item.passages,
        )
        return (yield from self.method.decoder(work))

    def as_dict(self) -> dict[str, Any]:
        """Return method, settings and prompts."""
        return {
            "kind": self.name,
            "settings": asdict(cast(Any, self.method)),
            "reader": {name: getattr(self.reader, name) for name in _READING},
            "prompts": prompts(),
            "searches": "by itself" if self.live else "the item's passages",
        }

    def searching(self) -> AdaptiveSystem:
        """Return the same system, which searches by itself."""
        return replace(self, live=True)


@dataclass(slots=True)
class AdaptiveModel(OwnsEngine):
    """A loaded model that answers by a method, as commands and servers ask it."""

    engine: Engine
    reader: Reader
    method: RetrievalMethod
    retriever: Retriever | None

    def __post_init__(self) -> None:
        if self.retriever is not None:
            self.retriever = SharedRetriever(self.retriever)

    @property
    def defaults(self) -> Decoding:
        """Return the settings that requests may name."""
        return Decoding(
            passages=self.reader.passages, passage_tokens=self.reader.passage_tokens
        )

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Return up to `k` passages for each query, best first."""
        if self.retriever is None:
            raise UserError("no retriever: pass retriever=..")
        return self.retriever(queries, k)

    def generate(self, question: str) -> Answer:
        """Answer one question."""
        return cast(Answer, self._call(question, None, self.reader).answers())

    def astream(
        self,
        question: str | Sequence[Mapping[str, str]],
        *,
        evidence: Sequence[Passage] | None = None,
        decoding: Decoding,
        flow: str | None = None,
        rewrite_scope: Any = "retrieval",
    ) -> AsyncGenerator[Segment | Answer, None]:
        """Return the pieces of an answer to the last turn."""
        reader, defaults = self.reader, self.defaults
        changed = [] if flow is None else ["flow"]
        for name in Decoding.__dataclass_fields__:
            value = getattr(decoding, name)
            if name in _READING:
                reader = replace(reader, **{name: value})
            elif value != getattr(defaults, name):
                changed.append(name)
        if changed:
            raise UserError(
                f"selfrag.{changed[0]}: this method has {', '.join(_READING)} and evidence"
            )
        text = question if isinstance(question, str) else question[-1]["content"]
        return self._call(text, evidence, reader).pieces_async()

    def _call(
        self, question: str, evidence: Sequence[Passage] | None, reader: Reader
    ) -> Call:
        if not question.strip():
            raise UserError("the question is empty")
        work = QuestionWork(question, reader, evidence=evidence)
        return Call([self.method.decoder(work)], self.engine, self.retriever)


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method by its name, as entry points have it: called with a tokenizer, it is a system."""

    name: str
    make: Any  # its class, a `RetrievalMethod`

    def __call__(self, tokenizer: Any, settings: Mapping[str, Any]) -> AdaptiveSystem:
        """Return the system on a checkpoint."""
        return self.system(model_of(tokenizer, tokenizer.name_or_path), settings)

    def at_endpoint(
        self, executor: Executor, settings: Mapping[str, Any]
    ) -> AdaptiveSystem:
        """Return the system on a chat model at an address."""
        return self.system(ChatModel.on(executor), settings)

    def system(self, model: Any, settings: Mapping[str, Any]) -> AdaptiveSystem:
        """Return the system on a model; `settings` are those of the method and of its reader."""
        self.check(settings)
        reading = {name: settings[name] for name in _READING if name in settings}
        options = {name: settings[name] for name in settings if name not in _READING}
        return AdaptiveSystem(
            self.name, self.make(**options), Reader.of(model, **reading)
        )

    def check(self, settings: Iterable[str]) -> None:
        """Refuse settings that neither the method nor its reader has."""
        known = [*(field.name for field in fields(self.make)), *_READING]
        for name in settings:
            if name not in known:
                raise unknown_name(
                    "setting",
                    name,
                    known,
                    f"the page of {self.name} in docs/guides/adaptive.md",
                )

    def load(
        self,
        model: str,
        index: str | None,
        engine: str | None,
        settings: Mapping[str, Any],
        **engine_options: Any,
    ) -> AdaptiveModel:
        """Load a model for `ask` and `serve`; `settings` are those of the method and of its reader."""
        chosen = {name: value for name, value in settings.items() if value is not None}
        self.check(chosen)
        rag = SelfRAG.from_pretrained(
            model, retriever=index, engine=engine, **engine_options
        )
        system = self.system(rag.prompting, chosen)
        return AdaptiveModel(rag.engine, system.reader, system.method, rag.retriever)


NEVER = MethodEntry("never", Never)
ALWAYS = MethodEntry("always", Always)
FLARE = MethodEntry("flare", Flare)
IRCOT = MethodEntry("ircot", IRCoT)
SELF_ASK = MethodEntry("self-ask", SelfAsk)
ITER_RETGEN = MethodEntry("iter-retgen", IterRetGen)
ADAPTIVE_RAG = MethodEntry("adaptive-rag", AdaptiveRAG)
ENTROPY = MethodEntry("entropy", Entropy)
MAX_PROBABILITY = MethodEntry("max-probability", MaxProbability)
CORRECTIVE = MethodEntry("crag", CRAG)
SELF_CORRECTIVE = MethodEntry("self-crag", SelfCRAG)
DRAGIN = MethodEntry("dragin", Dragin)
SEAKR = MethodEntry("seakr", SeaKR)
METHODS = (
    NEVER,
    ALWAYS,
    FLARE,
    IRCOT,
    SELF_ASK,
    ITER_RETGEN,
    ADAPTIVE_RAG,
    ENTROPY,
    MAX_PROBABILITY,
    CORRECTIVE,
    SELF_CORRECTIVE,
    DRAGIN,
    SEAKR,
)
"""All methods, by the names of entry points."""
