"""`Joined` and `Gate`: which reflectors take part in a decode, and how. Values of the policy; they run nothing.

A reflector is anything that judges what is being written: a LoRA intrinsic, a prompted judge, a classifier. It may
stand in for one of the three token critiques under that critique's weight, or join the score with a term of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from selfrag.errors import UserError
from selfrag.reflection.labels import CRITIQUES, Role
from selfrag.reflection.weights import NAME, TOKEN_TERMS

Effect = Literal["abstain", "write", "drop", "retrieve"]
REPLACEABLE = frozenset(labels.role for labels in CRITIQUES)
_JOINED = re.compile(r"(?P<name>[^=<>:]+)(=(?P<role>\w+))?(>=(?P<gate>[^:]+))?")
_GATE = re.compile(r"(?P<name>[^=<>:]+)<(?P<threshold>[^:]+):(?P<effect>\w+)")


@dataclass(frozen=True, slots=True)
class Joined:
    """A reflector in the segment score.

    `str()` writes it as `NAME`, `NAME=issup` or `NAME=issup>=0.1`, and `Joined.parse` reads that back.

    Attributes:
        reflector: its name.
        replaces: the token critique it stands in for, under that one's weight; None gives it a term of its own,
            weighed by `Weights.joined`.
        gate: a segment with any judged place below this is forbidden; None for no gate.
    """

    reflector: str
    replaces: Role | None = None
    gate: float | None = None

    def __post_init__(self) -> None:
        _check_name(self.reflector)
        if self.replaces is not None:
            if self.replaces not in REPLACEABLE:
                raise UserError(f"{self.reflector} cannot replace {self.replaces!r}; only {', '.join(TOKEN_TERMS)}")
            object.__setattr__(self, "replaces", Role(self.replaces))
        if self.gate is not None:
            _check_number(f"gate of {self.reflector}", self.gate)

    def __str__(self) -> str:
        role = f"={self.replaces}" if self.replaces else ""
        return f"{self.reflector}{role}" + ("" if self.gate is None else f">={self.gate!r}")

    @classmethod
    def parse(cls, text: str) -> Joined:
        """Read `hallucination_detection=issup>=0.1`.

        Raises:
            UserError: it is not of that form.
        """
        found = _JOINED.fullmatch(text.replace(" ", ""))
        if found is None:
            raise UserError(f"reflector {text!r}: write NAME, NAME=issup or NAME=issup>=0.1")
        gate = found["gate"]
        role = None if found["role"] is None else Role(_one_of(found["role"], TOKEN_TERMS, text))
        return cls(found["name"], role, None if gate is None else _number(gate, text))


@dataclass(frozen=True, slots=True)
class Gate:
    """A reflector that decides before anything is written.

    `str()` writes it as `NAME<0.5:abstain`, and `Gate.parse` reads that back.

    Attributes:
        reflector: its name.
        threshold: compared with the mean score of its judgments; one that is undefined never acts.
        effect: what happens below the threshold. `abstain`: judge the question and the passages found for it, give
            the fixed text in place of an answer. `write`: judge the same at every search, write without evidence.
            `drop`: judge each passage alone, leave out this one. `retrieve`: judge the question alone before anything
            is searched, search below and write without evidence above, whatever the model's own decision.
    """

    reflector: str
    threshold: float
    effect: Effect = "abstain"

    def __post_init__(self) -> None:
        _check_name(self.reflector)
        _check_number(f"threshold of {self.reflector}", self.threshold)
        _one_of(self.effect, get_args(Effect), f"gate {self.reflector}")

    def __str__(self) -> str:
        return f"{self.reflector}<{self.threshold!r}:{self.effect}"

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read `answerability<0.5:abstain`.

        Raises:
            UserError: it is not of that form.
        """
        found = _GATE.fullmatch(text.replace(" ", ""))
        if found is None:
            raise UserError(f"gate {text!r}: write NAME<THRESHOLD:EFFECT, such as answerability<0.5:abstain")
        effect: Any = _one_of(found["effect"], get_args(Effect), text)
        return cls(found["name"], _number(found["threshold"], text), effect)


Part = TypeVar("Part", Joined, Gate)


def parts(given: Any, kind: type[Part]) -> tuple[Part, ...]:
    """`Joined` or `Gate` values from values, their strings, or one of either.

    Raises:
        UserError: something else, or one reflector twice.
    """
    items = [given] if isinstance(given, str | Joined | Gate) else given
    if not isinstance(items, Iterable):
        raise UserError(f"{given!r:.80}: give a list of {kind.__name__} or of their strings")
    found = []
    for item in items:
        made = kind.parse(item) if isinstance(item, str) else item
        if not isinstance(made, kind):
            raise UserError(f"{item!r:.80}: give a {kind.__name__} or its string")
        found.append(made)
    keys = [(part.reflector, part.effect if isinstance(part, Gate) else "") for part in found]
    if twice := next((name for name, effect in keys if keys.count((name, effect)) > 1), None):
        raise UserError(f"reflector {twice!r} is named twice")
    return tuple(found)


def distinct_roles(joined: Iterable[Joined]) -> None:
    """Refuse two reflectors for one critique.

    Raises:
        UserError: there are two.
    """
    replaced = [part.replaces for part in joined if part.replaces is not None]
    if twice := next((role for role in replaced if replaced.count(role) > 1), None):
        raise UserError(f"two reflectors replace {twice}; let one of them join with a term of its own")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in TOKEN_TERMS:
        raise UserError(f"{name!r:.80} is no name of a reflector")


def _check_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{what}: {value!r:.80} is not a finite number")


def _one_of(value: str, known: Iterable[str], where: str) -> str:
    if value not in known:
        raise UserError(f"{where}: {value!r} is none of {', '.join(known)}")
    return value


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: {text!r} is not a number") from None
