"""Intrinsics, dialects and published adapters by name, and the card that says what an adapter was trained for.

Another package adds an intrinsic, a subclass of `Capability`, by an entry point of the group `selfrag.intrinsics`; a
dialect, by one of `selfrag.dialects`: a function from the names of a dialect and an intrinsic to a codec.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path, PurePosixPath
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, ClassVar

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.plugins import names, registered
from selfrag.common.reading import read_json
from selfrag.intrinsics.capability import Capability
from selfrag.intrinsics.contract import DIALECT, ChatPrompt, Codec, Message, State
from selfrag.loading import resolve_adapter

PAPER = ("query_rewrite", "uncertainty", "hallucination_detection", "answerability", "citation_generation")
"""The five of the paper (Table 1 of arXiv 2504.11704)."""

_INTRINSICS = {
    "query_rewrite": "selfrag.intrinsics.questions:QueryRewrite",
    "uncertainty": "selfrag.intrinsics.responses:Uncertainty",
    "hallucination_detection": "selfrag.intrinsics.responses:HallucinationDetection",
    "answerability": "selfrag.intrinsics.questions:Answerability",
    "citation_generation": "selfrag.intrinsics.responses:CitationGeneration",
    "context_relevance": "selfrag.intrinsics.questions:ContextRelevance",
    "query_clarification": "selfrag.intrinsics.questions:QueryClarification",
    "requirement_check": "selfrag.intrinsics.responses:RequirementCheck",
    "context_attribution": "selfrag.intrinsics.responses:ContextAttribution",
    "guardian": "selfrag.intrinsics.responses:Guardian",
    "policy_guardrails": "selfrag.intrinsics.responses:PolicyGuardrails",
    "factuality_detection": "selfrag.intrinsics.responses:FactualityDetection",
    "factuality_correction": "selfrag.intrinsics.responses:FactualityCorrection",
    "answer_relevance_classifier": "selfrag.intrinsics.responses:AnswerRelevanceClassifier",
    "answer_relevance_rewriter": "selfrag.intrinsics.responses:AnswerRelevanceRewriter",
}
SWITCH = "granite-switch"
"""Dialect of the adapters inside Granite Switch checkpoints."""
DIALECTS = (
    *("granite-3.2", "granite-3.3", "granite-common", "granite-common-gpt-oss", "mellea", "mellea-gpt-oss"),
    SWITCH,
)
"""Dialects of published adapters (`selfrag.intrinsics.dialects`)."""
_CODEC = "selfrag.intrinsics.dialects.registry:codec"


def intrinsics() -> tuple[str, ...]:
    """Names of all intrinsics, those of other packages last."""
    return _with_plugins(_INTRINSICS, "selfrag.intrinsics")


def dialects() -> tuple[str, ...]:
    """Names of all dialects, those of other packages last."""
    return _with_plugins((DIALECT, *DIALECTS), "selfrag.dialects")


def _with_plugins(own: Iterable[str], group: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*own, *names(group))))


def _registered(group: str, name: str) -> Any:
    try:
        return registered(group, name)
    except Exception as error:  # whatever the other package raises
        raise UserError(f"the entry point {name!r} of {group} cannot be loaded: {error!r:.200}") from error


def find(name: str) -> type[Capability[Any]]:
    """The intrinsic with this name, in any case, with hyphens or spaces; refuses unknown names and odd entry points."""
    wanted = named(name)
    if wanted in _INTRINSICS:
        own: type[Capability[Any]] = resolve_name(_INTRINSICS[wanted])
        return own
    kind = _registered("selfrag.intrinsics", wanted)
    if kind is None:
        raise UserError(f"unknown intrinsic {name!r}; known: {', '.join(intrinsics())}")
    if not (isinstance(kind, type) and issubclass(kind, Capability) and kind.name == wanted):
        raise UserError(f"the entry point {wanted!r} of selfrag.intrinsics names no Capability of that name")
    return kind


def catalog() -> tuple[type[Capability[Any]], ...]:
    """All intrinsics, as `find` gives them."""
    return tuple(map(find, intrinsics()))


def codec_of(kind: type[Capability[Any]], dialect: str = DIALECT) -> Codec:
    """The codec of an intrinsic in one of `dialects()`; refuses a dialect that is unknown or has no such intrinsic."""
    if dialect == DIALECT:
        return kind.default_codec()
    make = resolve_name(_CODEC) if dialect in DIALECTS else _registered("selfrag.dialects", dialect)
    if make is None:
        raise UserError(f"unknown dialect {dialect!r}; known: {', '.join(dialects())}")
    found: Codec = make(dialect, kind.name)
    return found


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
        """The card beside an adapter; refuses a folder without one."""
        path = directory / cls.FILE
        try:
            record = read_json(path)
            if record.pop("format") != cls.FORMAT:
                raise UserError(f"{path} has another format; this version reads {cls.FORMAT}")
            return cls(**{**record, "invocation": tuple(record["invocation"])})
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be used: {error}; give the folder of a trained adapter") from error

    def check(self, codec: Codec) -> None:
        """Refuse a codec of another intrinsic, dialect or wording than that of training."""
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
    """Hash of the prompts, slots and token limits of the codec for fixed conversations with either last role."""
    found = []
    for messages in (_PROBE.messages, _PROBE.messages[:1]):
        request = codec.encode(State(messages, _PROBE.passages))
        prompt = request.prompt
        text = [asdict(one) for one in prompt.messages] if isinstance(prompt, ChatPrompt) else prompt.text
        found.append([text, [(slot.prefill, slot.surfaces) for slot in request.slots], request.max_tokens])
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def check_cards(folders: Mapping[str, str], dialect: str | None) -> None:
    """Refuse adapters, by intrinsic, that would be asked with other words than those they were trained with.

    Without a dialect an adapter must say by its card that it speaks the default one, so that an adapter of somebody
    else, which has no card, is not asked in it by mistake.
    """
    for name, given in folders.items():
        folder = resolve_adapter(given)
        if (folder / AdapterCard.FILE).exists():
            AdapterCard.read(folder).check(codec_of(find(name), dialect or DIALECT))
        elif dialect is None and (folder / "adapter_config.json").is_file():
            raise UserError(
                f"{given} has no {AdapterCard.FILE} that says which prompts it was trained with; name its dialect:"
                f" {', '.join(dialects())}"
            )


PUBLISHED = "published"
"""In place of an adapter's folder: the one of this catalogue for the intrinsic and the model."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository of the Hugging Face hub."""

    name: str  # `owner/name`
    dialect: str  # wire format of its adapters; those that bring an `io.yaml` say it themselves
    bases: tuple[str, ...]  # base models, without their owner `ibm-granite`
    adapters: Mapping[str, str]  # what the adapter of an intrinsic is called there, by the intrinsic's name
    folder: str = "{adapter}/{base}/{kind}"  # of an adapter; empty for the repository itself
    revision: str | None = None  # commit; None where no source names one
    licence: str | None = None  # of the weights; None where it was not seen
    embedded: bool = False  # whether Granite Switch checkpoints hold its adapters, too

    @property
    def pinned(self) -> str:
        """Its name with the commit, as adapters are named by `selfrag.loading.resolve_adapter`."""
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    def adapter(self, intrinsic: str, base: str, *, activated: bool = False) -> str:
        """Where an adapter is, for `adapters=` of `Library.from_pretrained`; not each has an activated one."""
        kind = "alora" if activated else "lora"
        folder = self.folder.format(adapter=self.adapters[intrinsic], base=base, kind=kind)
        return f"{self.pinned}/{folder}" if folder else self.pinned


def _table(name: str) -> Any:
    return json.loads(files("selfrag.intrinsics.dialects").joinpath("data", name).read_text(encoding="utf-8"))


_DATA, _WORDS = _table("published.json"), _table("criteria.json")

REPOSITORIES: tuple[Repository, ...] = tuple(
    Repository(**{**row, "bases": tuple(row["bases"])}) for row in _DATA["repositories"]
)
"""Where the adapters of the public libraries are, with the commits that mellea 0.8.0 pins."""

SWITCHES: tuple[str, ...] = tuple(_DATA["switches"])
"""Granite Switch checkpoints; no source names a commit."""

EMBEDDED: Mapping[str, str] = MappingProxyType(
    {intrinsic: name for one in REPOSITORIES if one.embedded for intrinsic, name in one.adapters.items()}
)
"""What the adapters inside these checkpoints are called, by the intrinsic's name."""


def listed() -> Iterator[str]:
    """What there is, a line each."""
    for one in REPOSITORIES:
        pin = "not pinned" if one.revision is None else f"commit {one.revision[:8]}"
        held = f"{', '.join(one.adapters)} for {', '.join(one.bases)}"
        yield f"{one.name} ({pin}; {one.licence or 'licence on its card'}): {held}"
    for name in SWITCHES:
        yield f"{name} (not pinned; Apache-2.0): {len(EMBEDDED)} adapters inside, dialect granite-switch"


def find_published(intrinsic: str, model: str) -> tuple[str, str]:
    """The plain LoRA adapter of an intrinsic for a model, by the last part of its name, and its dialect."""
    having = [one for one in REPOSITORIES if intrinsic in one.adapters]
    base = PurePosixPath(model).name
    for one in having:
        if base in one.bases:
            return one.adapter(intrinsic, base), one.dialect
    known = dict.fromkeys(name for one in having for name in one.bases)
    raise UserError(
        f"no published adapter of {intrinsic} for {model!r:.80} is known; for: {', '.join(known) or 'no model'}"
    )


@dataclass(frozen=True, slots=True)
class Criterion:
    """What a guardian judges a text by."""

    text: str  # its definition, as it is sent
    ends_with: tuple[str, ...] = ("assistant", "user")  # roles of the turn that it can judge
    passages: bool = False  # whether it is about passages, too


CRITERIA: Mapping[str, Criterion] = MappingProxyType(
    {
        name: Criterion(row["text"], tuple(row.get("ends_with", ("assistant", "user"))), row.get("passages", False))
        for name, row in _WORDS["criteria"].items()
    }
)
"""The criteria of the public library by name. What meets one is a risk."""

SCORING: Mapping[str, str] = MappingProxyType(_WORDS["scoring"])
"""Which text a guardian judges, by name."""

CORRECTIONS: Mapping[str, str] = MappingProxyType(_WORDS["corrections"])
"""How a response is to be rewritten, by its category of the answer relevance classifier."""


def named(name: str) -> str:
    """A name as the tables spell it; case, hyphens and spaces do not matter."""
    return name.strip().casefold().replace("-", "_").replace(" ", "_")


def guardian_arguments(criteria: str, scoring_schema: str) -> dict[str, str]:
    """What the guardian's template is filled with; names of the tables as their texts, other texts as they are."""
    found = CRITERIA.get(named(criteria))
    return {
        "criteria": criteria if found is None else found.text,
        "scoring_schema": SCORING.get(named(scoring_schema), scoring_schema),
    }
