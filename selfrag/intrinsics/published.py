"""The public libraries in tables: where adapters are published, and the words that some were trained on.

Nothing is fetched here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from selfrag.errors import UserError

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
    """The plain LoRA adapter of an intrinsic for a model, and its dialect.

    Args:
        intrinsic: its name.
        model: hub name or folder of the base model; the last part of it counts.

    Raises:
        UserError: none is known; the message says for which models there is one.
    """
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
