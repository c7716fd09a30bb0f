"""`Weights` of the terms of the segment score: a frozen value with a canonical string that parses back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from selfrag.common.errors import UserError

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
