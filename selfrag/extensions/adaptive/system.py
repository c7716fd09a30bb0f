"""Methods as systems of `selfrag eval`, and as policies of `ask` and `serve`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    ChatModel,
    Decoder,
    Decoding,
    DecodingError,
    Engine,
    Executor,
    FormatModel,
    Item,
    Passage,
    Retriever,
    SelfRAG,
    Task,
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


def method_model(
    engine: Engine, reader: Reader, method: RetrievalMethod, retriever: Retriever | None
) -> FormatModel:
    """Return a loaded model that answers by a method, as commands and servers ask it."""

    def decoder(
        question: str, evidence: Sequence[Passage] | None, changes: Mapping[str, Any]
    ) -> Decoder:
        work = QuestionWork(question, replace(reader, **changes), evidence=evidence)
        return method.decoder(work)

    defaults = Decoding(**{name: getattr(reader, name) for name in _READING})
    return FormatModel(
        engine, retriever, defaults, _READING, "this method has", decoder
    )


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
    ) -> FormatModel:
        """Load a model for `ask` and `serve`; `settings` are those of the method and of its reader."""
        chosen = {name: value for name, value in settings.items() if value is not None}
        self.check(chosen)
        rag = SelfRAG.from_pretrained(
            model, retriever=index, engine=engine, **engine_options
        )
        system = self.system(rag.prompting, chosen)
        return method_model(rag.engine, system.reader, system.method, rag.retriever)


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
