"""Reflection labels and their groups: names, desirability values and token strings.

Values follow the paper (arXiv 2310.11511, Table 1 and appendix A.4): Relevant 1, Irrelevant 0; Fully 1, Partially 0.5,
No support 0; utility 1..5 as -1, -0.5, 0, 0.5, 1. Token strings are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from selfrag.common.errors import UserError


class Role(StrEnum):
    """What a judgment is about. Scores look at the role only, never at who judged."""

    RETRIEVE = "retrieve"
    RELEVANCE = "isrel"
    SUPPORT = "issup"
    UTILITY = "isuse"
    ANSWERABLE = "answerable"
    CERTAINTY = "certainty"
    CITATION = "citation"
    REWRITE = "rewrite"
    CLARITY = "clarity"
    COMPLIANCE = "compliance"


class LabelKind(StrEnum):
    """What choosing a label means."""

    NORMAL = "normal"
    ABSTAIN = "abstain"  # the judge declares the question void, such as `unanswerable`
    UNDEFINED = "undefined"  # there is nothing to judge, such as `NA`


@dataclass(frozen=True, slots=True)
class Label:
    """One value of a group."""

    name: str  # what people read and write, such as `Fully supported`
    value: float  # desirability; a group's score is the expectation of this value
    token: str  # the token string a model emits for it; the written form for labels that are no reflection tokens
    kind: LabelKind = LabelKind.NORMAL  # only normal labels have a value that counts


@dataclass(frozen=True, repr=False)
class LabelSet:
    """The labels among which one judgment distributes its probability."""

    role: Role
    labels: tuple[Label, ...]

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __repr__(self) -> str:
        return f"LabelSet({str(self.role)!r})"

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Label names in their fixed order."""
        return tuple(label.name for label in self.labels)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """Desirability values in the order of `names`."""
        return tuple(label.value for label in self.labels)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Token strings in the order of `names`."""
        return tuple(label.token for label in self.labels)

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """Positions of the labels with a value that counts."""
        return tuple(
            i for i, label in enumerate(self.labels) if label.kind is LabelKind.NORMAL
        )

    def index(self, name: str) -> int:
        """Return the position of a label; upper and lower case do not matter."""
        key = name.strip().casefold() if isinstance(name, str) else None
        for position, label in enumerate(self.labels):
            if key in (label.name.casefold(), label.token.casefold()):
                return position
        raise UserError(
            f"unknown {self.role} label {name!r:.80}; known: {', '.join(map(repr, self.names))}"
        )


RETRIEVE = LabelSet(
    Role.RETRIEVE,
    (
        Label("Retrieval", 1.0, "[Retrieval]"),
        Label("No Retrieval", 0.0, "[No Retrieval]"),
        Label("Continue to Use Evidence", 0.0, "[Continue to Use Evidence]"),
    ),
)
ISREL = LabelSet(
    Role.RELEVANCE,
    (Label("Relevant", 1.0, "[Relevant]"), Label("Irrelevant", 0.0, "[Irrelevant]")),
)
ISSUP = LabelSet(
    Role.SUPPORT,
    (
        Label("Fully supported", 1.0, "[Fully supported]"),
        Label("Partially supported", 0.5, "[Partially supported]"),
        Label("No support / Contradictory", 0.0, "[No support / Contradictory]"),
    ),
)
ISUSE = LabelSet(
    Role.UTILITY,
    tuple(
        Label(str(i + 1), value, f"[Utility:{i + 1}]")
        for i, value in enumerate((-1.0, -0.5, 0.0, 0.5, 1.0))
    ),
)

GROUPS: tuple[LabelSet, ...] = (RETRIEVE, ISREL, ISSUP, ISUSE)
"""The four groups of Self-RAG, in the order in which their tokens can occur."""

CRITIQUES: tuple[LabelSet, ...] = (ISREL, ISSUP, ISUSE)
"""The groups that enter the segment score (Eq. 4)."""

PARAGRAPH_OPEN = "<paragraph>"
PARAGRAPH_CLOSE = "</paragraph>"

TOKENS: tuple[str, ...] = (
    "[No Retrieval]",
    "[Retrieval]",
    "[Continue to Use Evidence]",
    "[Irrelevant]",
    "[Relevant]",
    PARAGRAPH_OPEN,
    PARAGRAPH_CLOSE,
    *ISUSE.tokens,
    *ISSUP.tokens,
)
"""All 15 tokens in the insertion order of the published checkpoints, so that an expanded vocabulary gets equal ids."""


def group(name: str) -> LabelSet:
    """Return the label set with this role name (`retrieve`, `isrel`, `issup`, `isuse`)."""
    role = name.strip().casefold() if isinstance(name, str) else None
    for labels in GROUPS:
        if labels.role == role:
            return labels
    raise UserError(
        f"unknown reflection group {name!r:.80}; known: {', '.join(labels.role for labels in GROUPS)}"
    )
