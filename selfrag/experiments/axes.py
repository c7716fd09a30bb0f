"""What a sweep varies: an axis as text, `issup=0,0.5,1`, and the settings that axes make of a base policy."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any, TypeAlias

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.task import SET_BY_TASK
from selfrag.experiments.studies import Setting
from selfrag.reflection.weights import TOKEN_TERMS

BASE = "base"
"""Name of the policy that the axes change."""
MOST_VALUES = 1000
"""Of one axis; more are a slip of the pen."""
_STRUCTURED = frozenset({"weights", "require", "forbid", "reflectors", "survivors", "gates", "abstention"})

Value: TypeAlias = float | int | bool | str | None


@dataclass(frozen=True, slots=True)
class Axis:
    """A weight or a field of `Decoding` with the values it takes.

    `Axis.parse("issup=0,0.5,1")` and `Axis.parse("threshold=0:1:0.1")` read it.
    """

    name: str  # `isrel`, `issup`, `isuse`, `+REFLECTOR`, or a field of `Decoding` such as `threshold` or `passages`
    values: tuple[Value, ...]  # at least one, all different

    def __post_init__(self) -> None:
        known = [item.name for item in fields(Decoding) if item.name not in {*_STRUCTURED, *SET_BY_TASK}]
        if self.name not in (*TOKEN_TERMS, *known) and not self.name.startswith("+"):
            raise UserError(f"axis {self.name!r}: known are {', '.join((*TOKEN_TERMS, '+REFLECTOR', *known))}")
        if not self.values or len({repr(value) for value in self.values}) != len(self.values):
            raise UserError(f"axis {self.name}: give at least one value, and each once")

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Read `issup=0,0.5,1`, `threshold=0:1:0.1` (ends included) or `mode=always,never`.

        Raises:
            UserError: unknown name, or values that cannot be read.
        """
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise UserError(f"axis {text!r}: write NAME=VALUE,VALUE or NAME=FIRST:LAST:STEP, such as issup=0,0.5,1")
        if ":" in values:
            return cls(name.strip(), _span(text, values))
        return cls(name.strip(), tuple(_value(part.strip()) for part in values.split(",")))

    def apply(self, decoding: Decoding, value: Value) -> Decoding:
        """The policy with this axis at `value`.

        Raises:
            UserError: the policy refuses the value.
        """
        if self.name in TOKEN_TERMS or self.name.startswith("+"):
            if isinstance(value, str | bool) or value is None:
                raise UserError(f"axis {self.name}: {value!r} is not a number")
            return replace(decoding, weights=_weighed(decoding, self.name, float(value)))
        changed: dict[str, Any] = {self.name: value}
        return replace(decoding, **changed)


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a sweep."""

    settings: tuple[Setting, ...]  # the base first; equal policies once
    # axis to its values in order, each with the name of its setting, for curves; empty for a grid
    series: Mapping[str, tuple[tuple[Value, str], ...]] = field(default_factory=dict)


def plan(base: Decoding, axes: Sequence[Axis], *, grid: bool = False, merge: bool = True) -> Plan:
    """Lay out a sweep.

    Args:
        base: the policy that is varied.
        axes: what to vary.
        grid: every combination of values; else each axis alone.
        merge: one setting for equal policies; else one for each value, so that plans of several bases have the same
            names.

    Raises:
        UserError: an axis twice, or a value that the policy refuses.
    """
    names = [axis.name for axis in axes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"axis {twice} is given twice")
    found: list[Setting] = [Setting(BASE, base)]
    if grid:
        for values in product(*(axis.values for axis in axes)):
            decoding = base
            for axis, value in zip(axes, values, strict=True):
                decoding = axis.apply(decoding, value)
            name = ",".join(f"{name}={label(v)}" for name, v in zip(names, values, strict=True))
            _add(found, name, decoding, merge=merge)
        return Plan(tuple(found))
    series = {
        axis.name: tuple(
            (value, _add(found, f"{axis.name}={label(value)}", axis.apply(base, value), merge=merge))
            for value in axis.values
        )
        for axis in axes
    }
    return Plan(tuple(found), series)


def label(value: Value) -> str:
    """A value as it stands in names: `0.5`, `2`, `none`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"


def _add(found: list[Setting], name: str, decoding: Decoding, *, merge: bool) -> str:
    """The name of the setting with this policy, which is added if it is new."""
    same = next((setting.name for setting in found if merge and setting.decoding == decoding), None)
    if same is None:
        found.append(Setting(name, decoding))
    return same or name


def _weighed(decoding: Decoding, term: str, value: float) -> Any:
    weights = decoding.weights
    if term in TOKEN_TERMS:
        changed: dict[str, Any] = {term: value}
        return replace(weights, **changed)
    return replace(weights, joined={**dict(weights.joined), term[1:]: value})


def _span(text: str, values: str) -> tuple[Value, ...]:
    try:
        first, last, step = (Decimal(part.strip()) for part in values.split(":"))
        count = int((last - first) / step) + 1 if step > 0 else 0
    except (InvalidOperation, ValueError, OverflowError):
        raise UserError(f"axis {text!r}: write the span as FIRST:LAST:STEP, such as 0:1:0.1") from None
    if not 0 < count <= MOST_VALUES:
        raise UserError(f"axis {text!r}: a span of {count} values; give 1 to {MOST_VALUES}, the step above 0")
    return tuple(float(first + i * step) for i in range(count))


def _value(text: str) -> Value:
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
    return found if isinstance(found, int | float) else text
