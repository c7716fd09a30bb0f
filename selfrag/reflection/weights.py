"""`Weights` of the critique groups in the segment score: a frozen value with a canonical string that parses back."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from selfrag.errors import UserError


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights w^G of Eq. 4; the defaults are the paper's (section 4.3).

    `str(Weights())` is `isrel=1,issup=1,isuse=0.5`, and `Weights.parse` reads it back.
    """

    isrel: float = 1.0
    issup: float = 1.0
    isuse: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"weight {field.name}={value!r} is not a finite number")

    def __str__(self) -> str:
        return ",".join(f"{field.name}={_number(getattr(self, field.name))}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> Weights:
        """Read `isrel=1,issup=2`; groups left out keep their default.

        Raises:
            UserError: unknown group, doubled group or not a number.
        """
        known = [field.name for field in fields(cls)]
        values: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, number = (piece.strip() for piece in part.partition("="))
            if name not in known or name in values:
                raise UserError(f"weight {part!r}: give each of {', '.join(known)} at most once, as name=number")
            try:
                values[name] = float(number)
            except ValueError:
                raise UserError(f"weight {part!r}: {number!r} is not a number") from None
        return cls(**values)

    def of(self, role: str) -> float:
        """Weight of a critique role (`isrel`, `issup`, `isuse`)."""
        return float(getattr(self, role))

    @property
    def vector(self) -> tuple[float, float, float]:
        """(isrel, issup, isuse)."""
        return (self.isrel, self.issup, self.isuse)


def _number(value: float) -> str:
    """Shortest text that parses back to `value`: 1, 0.5, 1e-09."""
    return str(int(value)) if value == int(value) and abs(value) < 1e16 else repr(float(value))
