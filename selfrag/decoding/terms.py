"""Weights, score terms and guardrails: how critiques and judges take part in a decode, as values and strings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, Role

TOKEN_TERMS = ("isrel", "issup", "isuse")
MAX_WEIGHT = 1e6
"""Largest absolute weight. Sums of larger ones could overflow."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def check_judge(name: object) -> None:
    """Refuse what no judge may be called."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in TOKEN_TERMS:
        raise UserError(f"{name!r:.80} is no name of a judge")


def check_finite(what: str, value: object) -> None:
    """Refuse what is no finite number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        raise UserError(f"{what}={value!r:.80} is not a finite number")


def as_number(text: str, where: str) -> float:
    """Return a number that was written as text."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: {text!r} is not a number") from None


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights w^G of Eq. 4; the defaults are the paper's (section 4.3).

    `str(Weights())` is `isrel=1,issup=1,isuse=0.5`, and `Weights.parse` reads it back. Judges with a
    term of their own are written with a plus: `isrel=1,issup=1,isuse=0.5,+citations=0.5`.

    Attributes:
        isrel: weight of the relevance critique (IsRel).
        issup: weight of the support critique (IsSup).
        isuse: weight of the utility critique (IsUse).
        judges: weights of the judges with a term of their own, by name; as an option NAME=NUMBER. Kept as pairs in the
            order of the names.

    Raises:
        UserError: a weight is no finite number or too large, or a name is none of a judge.

    Example:
        >>> weights = Weights.parse("issup=2,+citations=0.5")
        >>> str(weights)
        'isrel=1,issup=2,isuse=0.5,+citations=0.5'
        >>> weights.of("citations")
        0.5
    """

    isrel: float = 1.0
    issup: float = 1.0
    isuse: float = 0.5
    judges: Mapping[str, float] | tuple[tuple[str, float], ...] = field(default=())

    def __post_init__(self) -> None:
        try:
            pairs = dict(self.judges)
        except (TypeError, ValueError):
            raise UserError(
                f"judges={self.judges!r:.80}: give names of judges and their weights"
            ) from None
        for name in pairs:
            check_judge(name)
        object.__setattr__(self, "judges", tuple(sorted(pairs.items())))
        for name, value in (
            *((term, getattr(self, term)) for term in TOKEN_TERMS),
            *pairs.items(),
        ):
            check_finite(f"weight {name}", value)
            if abs(value) > MAX_WEIGHT:
                raise UserError(
                    f"weight {name}={value:g}: give a number from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
                )

    def __str__(self) -> str:
        parts = [f"{term}={_number(getattr(self, term))}" for term in TOKEN_TERMS]
        parts += [
            f"+{name}={_number(value)}" for name, value in dict(self.judges).items()
        ]
        return ",".join(parts)

    @classmethod
    def parse(cls, text: str) -> Weights:
        """Read `isrel=1,issup=2,+citations=0.5`; groups left out keep their default.

        Raises:
            UserError: unknown group, doubled group or not a number.
        """
        terms: dict[str, float] = {}
        judges: dict[str, float] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, _, number = map(str.strip, part.partition("="))
            is_judge = name.startswith("+")
            weights = judges if is_judge else terms
            term = name.removeprefix("+")
            if term in weights or not (is_judge or term in TOKEN_TERMS):
                raise UserError(
                    f"weight {part!r}: give each of {', '.join(TOKEN_TERMS)} and of +JUDGE at most once, as name=number"
                )
            weights[term] = as_number(number, f"weight {part!r}")
        return cls(**terms, judges=judges)

    def of(self, term: str) -> float:
        """Return the weight of a critique role (`isrel`, `issup`, `isuse`), or of a judge (1 if none is given)."""
        return float(
            getattr(self, term)
            if term in TOKEN_TERMS
            else dict(self.judges).get(term, 1.0)
        )

    def row(self, terms: Sequence[str]) -> tuple[float, ...]:
        """Return the weights of some terms, in their order."""
        return tuple(map(self.of, terms))

    def as_dict(self) -> dict[str, float | dict[str, float]]:
        """Return plain values, ready for JSON; `judges` only where there is any."""
        values: dict[str, float | dict[str, float]] = {
            term: getattr(self, term) for term in TOKEN_TERMS
        }
        if self.judges:
            values["judges"] = dict(self.judges)
        return values


def _number(value: float) -> str:
    """Return the shortest text that parses back to `value`: 1, 0.5, 1e-09."""
    if value == int(value) and abs(value) < 1e16:
        return str(int(value))
    return repr(float(value))


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
