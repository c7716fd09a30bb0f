"""Words that the public guardian and answer relevance adapters were trained on, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Criterion:
    """What a guardian judges a text by."""

    text: str  # its definition, as it is sent
    ends_with: tuple[str, ...] = ("assistant", "user")  # roles of the turn that it can judge
    passages: bool = False  # whether it is about passages, too


_DATA = json.loads(files("selfrag.intrinsics.dialects").joinpath("data", "criteria.json").read_text(encoding="utf-8"))

CRITERIA: Mapping[str, Criterion] = MappingProxyType(
    {
        name: Criterion(row["text"], tuple(row.get("ends_with", ("assistant", "user"))), row.get("passages", False))
        for name, row in _DATA["criteria"].items()
    }
)
"""The criteria of the public library by name. What meets one is a risk."""

SCORING: Mapping[str, str] = MappingProxyType(_DATA["scoring"])
"""Which text a guardian judges, by name."""

CORRECTIONS: Mapping[str, str] = MappingProxyType(_DATA["corrections"])
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
