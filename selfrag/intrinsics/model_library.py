"""The catalog of intrinsics, and `Library`: the intrinsics on one model with its adapters, loaded by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from retrieval.passage import Passage
from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.intrinsics.answerability import Answerability
from selfrag.intrinsics.capability import Capability
from selfrag.intrinsics.chat import DIALECT
from selfrag.intrinsics.citation_generation import CitationGeneration
from selfrag.intrinsics.context_relevance import ContextRelevance
from selfrag.intrinsics.contract import ChatPrompt, Codec, Executor, Message, State
from selfrag.intrinsics.hallucination_detection import HallucinationDetection
from selfrag.intrinsics.query_clarification import QueryClarification
from selfrag.intrinsics.query_rewrite import QueryRewrite
from selfrag.intrinsics.requirement_check import RequirementCheck
from selfrag.intrinsics.uncertainty import Uncertainty
from selfrag.loading import DEMO, shipped_adapters

PAPER: tuple[type[Capability[Any]], ...] = (
    QueryRewrite,
    Uncertainty,
    HallucinationDetection,
    Answerability,
    CitationGeneration,
)
"""The five of the paper (Table 1 of arXiv 2504.11704)."""

CATALOG: tuple[type[Capability[Any]], ...] = (*PAPER, ContextRelevance, QueryClarification, RequirementCheck)
"""All of them."""


def find(name: str) -> type[Capability[Any]]:
    """The intrinsic with this name; case, hyphens and underscores do not matter.

    Raises:
        UserError: there is none; the message lists the known ones.
    """
    wanted = name.strip().casefold().replace("-", "_").replace(" ", "_")
    for kind in CATALOG:
        if kind.name == wanted:
            return kind
    raise UserError(f"unknown intrinsic {name!r}; known: {', '.join(kind.name for kind in CATALOG)}")


def codec_of(kind: type[Capability[Any]], dialect: str = DIALECT) -> Codec:
    """The codec of an intrinsic in a dialect.

    Args:
        kind: the intrinsic.
        dialect: `chat`, or one of `selfrag.intrinsics.dialects.registry.DIALECTS`.

    Raises:
        UserError: no such dialect, or it has no such intrinsic.
    """
    if dialect == DIALECT:
        return kind.default_codec()
    from selfrag.intrinsics.dialects.registry import DIALECTS, codec

    if dialect not in DIALECTS:
        raise UserError(f"unknown dialect {dialect!r}; known: {', '.join((DIALECT, *DIALECTS))}")
    return codec(dialect, kind.name)


C = TypeVar("C", bound=Capability[Any])


@dataclass(frozen=True)
class Library:
    """The intrinsics on one model."""

    executor: Executor  # where requests run
    # adapter of an intrinsic on the executor, by the intrinsic's name; others use the base model
    adapters: Mapping[str, str] = field(default_factory=dict)
    dialect: str = DIALECT  # of the adapters and of the base model

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = DEMO,
        *,
        engine: str | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        dialect: str = DIALECT,
        **engine_options: Any,
    ) -> Library:
        """Load a model and its adapters.

        Args:
            name_or_path: `demo`, a directory, or a name on the Hugging Face hub.
            engine: `vllm`, `transformers`, the address of a `vllm serve`, or None for the best one installed.
            adapters: folder of a LoRA adapter (its name on a server) by the intrinsic's name. None takes those that are
                shipped with the demo model, and none for other models.
            dialect: see `codec_of`.
            engine_options: fields of the engine's configuration, such as `max_model_len`.

        Raises:
            UserError: a name is unknown, something cannot be loaded, or an adapter was trained with other prompts.
        """
        from selfrag.engines.select import load_engine
        from selfrag.intrinsics.execution.engine import EngineExecutor
        from selfrag.loading import load_tokenizer, resolve_model

        given = _adapters(name_or_path, adapters)
        path = resolve_model(name_or_path)
        tokenizer = load_tokenizer(path, trust_remote_code=engine_options.get("trust_remote_code", False))
        if engine is not None and engine.startswith(("http://", "https://")):
            loaded = load_engine("http", path, url=engine, **engine_options)
            names = {name: str(adapter) for name, adapter in given.items() if str(adapter) in loaded.limits.adapters}
            if adapters is not None and len(names) < len(given):
                missing = sorted(set(map(str, given.values())) - set(names.values()))
                loaded.close()
                raise UserError(
                    f"the server has no adapter {missing[0]!r}; it has: {', '.join(sorted(loaded.limits.adapters))}"
                )
            return cls(EngineExecutor(loaded, tokenizer), names, dialect)
        folders = {name: str(folder) for name, folder in given.items()}
        check_cards(folders, dialect)
        loaded = load_engine(engine, path, adapters=folders, **engine_options)
        return cls(EngineExecutor(loaded, tokenizer), {name: name for name in folders}, dialect)

    @classmethod
    def at_endpoint(
        cls,
        url: str,
        model: str,
        *,
        adapters: Mapping[str, str] | None = None,
        dialect: str = DIALECT,
        **settings: Any,
    ) -> Library:
        """The intrinsics of a model behind any OpenAI-compatible endpoint, with its adapters or with prompts alone.

        Args:
            url: such as `http://127.0.0.1:8000/v1`.
            model: its name there.
            adapters: what the server calls the adapter of an intrinsic, by the intrinsic's name.
            dialect: see `codec_of`.
            settings: further fields of `EndpointConfig`, such as `api_key_env`.

        Raises:
            UserError: a name is unknown, or the address is none.
        """
        from selfrag.intrinsics.execution.endpoint import EndpointConfig, EndpointExecutor

        names = {find(name).name: adapter for name, adapter in (adapters or {}).items()}
        return cls(EndpointExecutor(EndpointConfig(url, model, **settings)), names, dialect)

    def get(self, kind: type[C]) -> C:
        """An intrinsic of this model.

        Raises:
            UserError: the dialect has no such intrinsic.
        """
        return kind(self.executor, codec_of(kind, self.dialect), self.adapters.get(kind.name))

    def __getitem__(self, name: str) -> Capability[Any]:
        return self.get(find(name))

    def close(self) -> None:
        """Free the model."""
        close = getattr(self.executor, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_PROBE = State(
    (Message("user", "Who wrote it? When?"), Message("assistant", "Goethe did. In 1808.")),
    (Passage("a", "Faust is a play. Goethe wrote it.", "Faust"), Passage("b", "It appeared in 1808.")),
)


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """What an adapter is for."""

    FILE: ClassVar[str] = "intrinsic.json"
    FORMAT: ClassVar[int] = 1

    intrinsic: str  # its name
    dialect: str  # whose codec it speaks
    prompt: str  # fingerprint of what that codec asked when the adapter was trained
    # shape of the base model: type, width, layers, rows of the vocabulary
    base: dict[str, Any] = field(default_factory=dict)
    rank: int = 0  # of its pairs
    invocation: tuple[int, ...] = ()  # ids that switch it on; empty for a LoRA that always acts

    @classmethod
    def of(cls, codec: Codec, *, rank: int, base: dict[str, Any], invocation: tuple[int, ...]) -> AdapterCard:
        """The card of a run."""
        return cls(codec.intrinsic, codec.dialect, fingerprint(codec), base, rank, invocation)

    @classmethod
    def read(cls, directory: Path) -> AdapterCard:
        """The card beside an adapter.

        Raises:
            UserError: there is none, or it cannot be read.
        """
        path = directory / cls.FILE
        try:
            record = read_json(path)
            if record.pop("format") != cls.FORMAT:
                raise UserError(f"{path} has another format; this version reads {cls.FORMAT}")
            return cls(**{**record, "invocation": tuple(record["invocation"])})
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be used: {error}; give the folder of a trained adapter") from error

    def check(self, codec: Codec) -> None:
        """Refuse a codec that asks something else than the one of training.

        Raises:
            UserError: another intrinsic, dialect or wording.
        """
        for name in ("intrinsic", "dialect"):
            if getattr(self, name) != getattr(codec, name):
                raise UserError(
                    f"the adapter was trained for {name} {getattr(self, name)!r}, not {getattr(codec, name)!r}"
                )
        if self.prompt != fingerprint(codec):
            raise UserError(f"the adapter for {self.intrinsic} was trained with other prompts; train it again")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": self.FORMAT} | asdict(self)


def fingerprint(codec: Codec) -> str:
    """Changes with whatever the codec asks, on fixed conversations that end with either role."""
    found = []
    for messages in (_PROBE.messages, _PROBE.messages[:1]):
        request = codec.encode(State(messages, _PROBE.passages))
        prompt = request.prompt
        text = [asdict(one) for one in prompt.messages] if isinstance(prompt, ChatPrompt) else prompt.text
        found.append([text, [(slot.prefill, slot.surfaces) for slot in request.slots], request.max_tokens])
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def check_cards(folders: Mapping[str, str], dialect: str) -> None:
    """Refuse adapters that were trained here, but for something else than they would be asked.

    Raises:
        UserError: another intrinsic, dialect or wording, or a card that cannot be read.
    """
    for name, folder in folders.items():
        if (Path(folder) / AdapterCard.FILE).exists():
            AdapterCard.read(Path(folder)).check(codec_of(find(name), dialect))


def _adapters(name_or_path: str | Path, given: Mapping[str, str | Path] | None) -> dict[str, str | Path]:
    """Adapters by the catalog's names."""
    if given is None:
        return dict(shipped_adapters(name_or_path))
    return {find(name).name: adapter for name, adapter in given.items()}
