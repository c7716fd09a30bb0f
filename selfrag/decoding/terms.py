"""Score terms and guardrails: where judges take part in a decode, as values with canonical strings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, Role
from selfrag.reflection.weights import TOKEN_TERMS, as_number, check_finite, check_judge

_GROUPS = {labels.role: labels for labels in CRITIQUES}
REPLACEABLE = frozenset(_GROUPS)


def as_label(judgment: Judgment, role: Role) -> str:
    """Return the label of Self-RAG's group whose value is nearest to that of the judgment's label.

    A judge that stands in for IsSup says `faithful` where constraints and citations read `Fully supported`.
    """
    labels = _GROUPS[role]
    if judgment.labels == labels:
        return judgment.label
    value = judgment.labels.values[judgment.labels.names.index(judgment.label)]
    return min(labels, key=lambda label: abs(label.value - value)).name


Effect = Literal["abstain", "write", "drop", "retrieve"]
_TERM = re.compile(r"(?P<name>[^=<>:]+)(=(?P<role>\w+))?(>=(?P<least>[^:]+))?")
_GUARDRAIL = re.compile(r"(?P<name>[^=<>:]+)<(?P<threshold>[^:]+):(?P<effect>\w+)")


@dataclass(frozen=True, slots=True)
class ScoreTerm:
    """A judge in the segment score.

    `str()` writes it as `NAME`, `NAME=issup` or `NAME=issup>=0.1`, and `ScoreTerm.parse` reads that back.

    Attributes:
        judge: its name.
        replaces: the token critique that it replaces, under that critique's weight; None adds a term of its own,
            weighted by `Weights.judges`.
        least: a segment with any judgment below this is forbidden; None for no limit.
    """

    judge: str
    replaces: Role | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        check_judge(self.judge)
        if self.replaces is not None:
            check_choice(f"role of {self.judge}", self.replaces, TOKEN_TERMS)
            object.__setattr__(self, "replaces", Role(self.replaces))
        if self.least is not None:
            check_finite(f"limit of {self.judge}", self.least)

    def __str__(self) -> str:
        text = self.judge
        if self.replaces:
            text += f"={self.replaces}"
        if self.least is not None:
            text += f">={self.least!r}"
        return text

    @classmethod
    def parse(cls, text: str) -> ScoreTerm:
        """Read `hallucination_detection=issup>=0.1`."""
        match = _TERM.fullmatch(text.replace(" ", ""))
        if match is None:
            raise UserError(
                f"judge {text!r}: write NAME, NAME=issup or NAME=issup>=0.1"
            )
        least = match["least"]
        role = cast(Role | None, match["role"])
        return cls(
            match["name"], role, None if least is None else as_number(least, text)
        )


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A judge that decides before anything is written.

    `str()` writes it as `NAME<0.5:abstain`, and `Guardrail.parse` reads that back.

    Attributes:
        judge: its name.
        threshold: compared with the mean score of its judgments; an undefined judgment never acts.
        effect: what happens below the threshold. `abstain`: judge the question and the passages found for it, give
            the fixed text in place of an answer. `write`: judge the same at every search, write without evidence.
            `drop`: judge each passage alone, leave out this one. `retrieve`: judge the question alone before anything
            is searched, search below and write without evidence above, whatever the model's own decision.
    """

    judge: str
    threshold: float
    effect: Effect = "abstain"

    def __post_init__(self) -> None:
        check_judge(self.judge)
        check_finite(f"threshold of {self.judge}", self.threshold)
        check_choice(f"effect of {self.judge}", self.effect, get_args(Effect))

    def __str__(self) -> str:
        return f"{self.judge}<{self.threshold!r}:{self.effect}"

    @classmethod
    def parse(cls, text: str) -> Guardrail:
        """Read `answerability<0.5:abstain`."""
        match = _GUARDRAIL.fullmatch(text.replace(" ", ""))
        if match is None:
            raise UserError(
                f"guardrail {text!r}: write NAME<THRESHOLD:EFFECT, such as answerability<0.5:abstain"
            )
        effect: Any = match["effect"]
        return cls(match["name"], as_number(match["threshold"], text), effect)


TermOrGuardrail = TypeVar("TermOrGuardrail", ScoreTerm, Guardrail)


def parts(values: Any, kind: type[TermOrGuardrail]) -> tuple[TermOrGuardrail, ...]:
    """Read `ScoreTerm` or `Guardrail` values from values, their strings, or one of either; refuse a judge twice."""
    if isinstance(values, str | ScoreTerm | Guardrail):
        values = [values]
    if not isinstance(values, Iterable):
        raise UserError(
            f"{values!r:.80}: give a list of {kind.__name__} or of their strings"
        )
    parts: dict[tuple[str, str], TermOrGuardrail] = {}
    for item in values:
        part = kind.parse(item) if isinstance(item, str) else item
        if not isinstance(part, kind):
            raise UserError(f"{item!r:.80}: give a {kind.__name__} or its string")
        key = part.judge, part.effect if isinstance(part, Guardrail) else ""
        if key in parts:
            raise UserError(f"judge {part.judge!r} is named twice")
        parts[key] = part
    return tuple(parts.values())


def distinct_roles(terms: Iterable[ScoreTerm]) -> None:
    """Refuse two judges for one critique."""
    replaced = [term.replaces for term in terms if term.replaces is not None]
    for role in replaced:
        if replaced.count(role) > 1:
            raise UserError(
                f"two judges replace {role}; give one of them a term of its own"
            )
