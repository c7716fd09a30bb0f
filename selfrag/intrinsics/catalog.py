"""Intrinsics and dialects by name, and the card that says what an adapter was trained for.

Another package adds an intrinsic, a subclass of `Capability`, by an entry point of the group `selfrag.intrinsics`; a
dialect, by one of `selfrag.dialects`: a function from the names of a dialect and an intrinsic to a codec.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.plugins import load_registered, names
from selfrag.common.reading import read_json
from selfrag.engines.adapters import resolve_adapter
from selfrag.intrinsics.capability import Capability
from selfrag.intrinsics.criteria import normalise_name
from selfrag.intrinsics.questions import (
    Answerability,
    ContextRelevance,
    QueryClarification,
    QueryRewrite,
)
from selfrag.intrinsics.responses import (
    AnswerRelevanceClassifier,
    AnswerRelevanceRewriter,
    CitationGeneration,
    ContextAttribution,
    FactualityCorrection,
    FactualityDetection,
    Guardian,
    HallucinationDetection,
    PolicyGuardrails,
    RequirementCheck,
    Uncertainty,
)
from selfrag.judges.wire import DIALECT, ChatPrompt, Codec
from selfrag.reflection.inputs import JudgeInput, Message

PAPER = (
    "query_rewrite",
    "uncertainty",
    "hallucination_detection",
    "answerability",
    "citation_generation",
)
"""The five of the paper (Table 1 of arXiv 2504.11704)."""

_INTRINSICS: Mapping[str, type[Capability[Any]]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            QueryRewrite,
            Uncertainty,
            HallucinationDetection,
            Answerability,
            CitationGeneration,
            ContextRelevance,
            QueryClarification,
            RequirementCheck,
            ContextAttribution,
            Guardian,
            PolicyGuardrails,
            FactualityDetection,
            FactualityCorrection,
            AnswerRelevanceClassifier,
            AnswerRelevanceRewriter,
        )
    }
)
INTRINSICS = "selfrag.intrinsics"
DIALECTS = "selfrag.dialects"
"""Groups of entry points."""


def intrinsics() -> tuple[str, ...]:
    """Return the names of all intrinsics, those of other packages last."""
    return tuple(dict.fromkeys((*_INTRINSICS, *names(INTRINSICS))))


def dialects() -> tuple[str, ...]:
    """Return the names of all dialects, the default one first."""
    return tuple(dict.fromkeys((DIALECT, *names(DIALECTS))))


def find(name: str) -> type[Capability[Any]]:
    """Return the intrinsic with this name, in any case, with hyphens or spaces.

    Raises:
        UserError: the name is unknown, or its entry point names no intrinsic.
    """
    key = normalise_name(name)
    if key in _INTRINSICS:
        return _INTRINSICS[key]
    kind = load_registered(INTRINSICS, key)
    if kind is None:
        raise UserError(f"unknown intrinsic {name!r}; known: {', '.join(intrinsics())}")
    if not (
        isinstance(kind, type) and issubclass(kind, Capability) and kind.name == key
    ):
        raise UserError(
            f"the entry point {key!r} of {INTRINSICS} names no Capability of that name"
        )
    return kind


def catalog() -> tuple[type[Capability[Any]], ...]:
    """Return all intrinsics, as `find` gives them."""
    return tuple(map(find, intrinsics()))


def codec_of(kind: type[Capability[Any]], dialect: str = DIALECT) -> Codec:
    """Return the codec of an intrinsic in one of `dialects()`.

    Raises:
        UserError: the dialect is unknown, or has no such intrinsic.
    """
    if dialect == DIALECT:
        return kind.chat
    make = load_registered(DIALECTS, dialect)
    if make is None:
        raise UserError(f"unknown dialect {dialect!r}; known: {', '.join(dialects())}")
    if not callable(make):
        raise UserError(
            f"the entry point {dialect!r} of {DIALECTS} names no function, but {make!r:.80}"
        )
    codec: Codec = make(dialect, kind.name)
    return codec


_PROBE = JudgeInput(
    (
        Message("user", "Who wrote it? When?"),
        Message("assistant", "Goethe did. In 1808."),
    ),
    (
        Passage("a", "Faust is a play. Goethe wrote it.", "Faust"),
        Passage("b", "It appeared in 1808."),
    ),
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
    invocation: tuple[
        int, ...
    ] = ()  # ids that switch it on; empty for a LoRA that always acts

    @classmethod
    def of(
        cls,
        codec: Codec,
        *,
        rank: int,
        base: dict[str, Any],
        invocation: tuple[int, ...],
    ) -> AdapterCard:
        """Return the card of a run."""
        return cls(
            codec.intrinsic, codec.dialect, fingerprint(codec), base, rank, invocation
        )

    @classmethod
    def read(cls, directory: Path) -> AdapterCard:
        """Read the card beside an adapter; a folder without one is refused."""
        path = directory / cls.FILE
        try:
            record = read_json(path)
            if record.pop("format") != cls.FORMAT:
                raise UserError(
                    f"{path} has another format; this version reads {cls.FORMAT}"
                )
            return cls(**{**record, "invocation": tuple(record["invocation"])})
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} cannot be used: {error}; give the folder of a trained adapter"
            ) from error

    def check(self, codec: Codec) -> None:
        """Refuse a codec of another intrinsic, dialect or wording than that of training."""
        for name in ("intrinsic", "dialect"):
            if getattr(self, name) != getattr(codec, name):
                raise UserError(
                    f"the adapter was trained for {name} {getattr(self, name)!r}, not {getattr(codec, name)!r}"
                )
        if self.prompt != fingerprint(codec):
            raise UserError(
                f"the adapter for {self.intrinsic} was trained with other prompts; train it again"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"format": self.FORMAT} | asdict(self)


def fingerprint(codec: Codec) -> str:
    """Return a hash of the codec's prompts, slots and token limits for fixed conversations with either last role."""
    requests = []
    for messages in (_PROBE.messages, _PROBE.messages[:1]):
        request = codec.encode(JudgeInput(messages, _PROBE.passages))
        prompt = request.prompt
        text = (
            list(map(asdict, prompt.messages))
            if isinstance(prompt, ChatPrompt)
            else prompt.text
        )
        slots = [(slot.prefill, slot.surfaces) for slot in request.slots]
        requests.append([text, slots, request.max_tokens])
    return hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()


def check_cards(folders: Mapping[str, str], dialect: str | None) -> None:
    """Refuse adapters, by intrinsic, that would be asked with other words than those they were trained with.

    Without a dialect an adapter must say by its card that it speaks the default one, so that an adapter of somebody
    else, which has no card, is not asked in it by mistake.
    """
    for name, adapter in folders.items():
        folder = resolve_adapter(adapter)
        if (folder / AdapterCard.FILE).exists():
            AdapterCard.read(folder).check(codec_of(find(name), dialect or DIALECT))
        elif dialect is None and (folder / "adapter_config.json").is_file():
            raise UserError(
                f"{adapter} has no {AdapterCard.FILE} that says which prompts it was trained with; name its dialect:"
                f" {', '.join(dialects())}"
            )
