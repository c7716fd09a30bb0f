"""What a guardian judges by, and how a response is corrected, by name: the words that public adapters learned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Criterion:
    """What a guardian judges a text by."""

    text: str  # its definition, as it is sent
    # roles of the turn that it can judge
    ends_with: tuple[str, ...] = (
        "assistant",
        "user",
    )
    passages: bool = False  # whether it is about passages, too


_WORDS = json.loads(
    files(__package__).joinpath("criteria.json").read_text(encoding="utf-8")
)


def _criterion(row: dict[str, Any]) -> Criterion:
    if "ends_with" in row:
        row = {**row, "ends_with": tuple(row["ends_with"])}
    return Criterion(**row)


CRITERIA: Mapping[str, Criterion] = MappingProxyType(
    {name: _criterion(row) for name, row in _WORDS["criteria"].items()}
)
"""The criteria of the public library by name. What meets one is a risk."""

SCORING: Mapping[str, str] = MappingProxyType(_WORDS["scoring"])
"""Which text a guardian judges, by name."""

CORRECTIONS: Mapping[str, str] = MappingProxyType(_WORDS["corrections"])
"""How a response is to be rewritten, by its category of the answer relevance classifier."""


def normalise_name(name: str) -> str:
    """Return a name as the tables spell it; case, hyphens and spaces do not matter."""
    return name.strip().casefold().replace("-", "_").replace(" ", "_")


def guardian_arguments(criteria: str, scoring_schema: str) -> dict[str, str]:
    """Return what the guardian's template is filled with: the texts of known names, other texts as they are."""
    criterion = CRITERIA.get(normalise_name(criteria))
    return {
        "criteria": criteria if criterion is None else criterion.text,
        "scoring_schema": SCORING.get(normalise_name(scoring_schema), scoring_schema),
    }
