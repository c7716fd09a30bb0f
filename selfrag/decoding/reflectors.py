"""Reflectors in a decode: score terms, guardrails, and the input and output of a reflector."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

from retrieval.passage import Passage
from selfrag.common.checks import choice
from selfrag.common.errors import UserError
from selfrag.decoding.requests import Request, Result
from selfrag.prompting import Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, Role
from selfrag.reflection.weights import TOKEN_TERMS, as_number, check_finite, check_reflector

T = TypeVar("T")
Asking = Generator[list[Request], list[Result], T]

_GROUPS = {labels.role: labels for labels in CRITIQUES}
REPLACEABLE = frozenset(_GROUPS)


@dataclass(frozen=True, slots=True)
class Moment:
    """What there is to judge."""

    question: str  # the last user turn, as asked
    history: tuple[Turn, ...] = ()  # turns before it
    passages: tuple[Passage, ...] = ()  # the evidence; empty without
    before: str = ""  # the answer so far
    text: str = ""  # the segment that follows; empty if nothing is written yet


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgments of one moment, one for each place in it; none at all means undefined."""

    places: tuple[Judgment, ...] = ()  # the judgments that are defined, all over one label set
    shares: tuple[float, ...] = ()  # how much each counts in their mean, above 0

    def mean(self, site: str, evidence: str | None) -> Judgment | None:
        """The mixture of the places; None without any."""
        if len(self.places) <= 1:
            return replace(self.places[0], site=site, evidence=evidence) if self.places else None
        shares = self.shares or (1.0,) * len(self.places)
        total = math.fsum(shares)
        columns = zip(*(place.distribution for place in self.places), strict=True)
        mixture = tuple(math.fsum(p * s for p, s in zip(column, shares, strict=True)) / total for column in columns)
        coverage = math.fsum(place.coverage * s for place, s in zip(self.places, shares, strict=True)) / total
        first = self.places[0]
        return Judgment(first.labels, site, mixture, coverage, first.source, evidence)

    @property
    def lowest(self) -> float | None:
        """Score of the worst place; None without any."""
        return min((place.score for place in self.places), default=None)


class Critic(Protocol):
    """A reflector as the decoder sees it."""

    @property
    def name(self) -> str:
        """As `ScoreTerm` and `Guardrail` call it."""

    @property
    def cost(self) -> int:
        """0 nothing, 1 one token a label, 2 a new prefill, 3 written text; expensive ones judge survivors only."""

    @property
    def of_passages(self) -> bool:
        """Whether it looks at question and passages alone, so that one verdict holds for all that is written."""

    @property
    def needs_evidence(self) -> bool:
        """Whether there is nothing to judge without a passage."""

    def judge(self, moments: Sequence[Moment]) -> Asking[list[Verdict]]:
        """One verdict a moment, in order. What a model wrote wrongly is undefined, never an exception."""


def together(askings: Sequence[Asking[T]]) -> Asking[list[T]]:
    """Run computations side by side, so that their requests share batches."""
    found: dict[int, T] = {}
    live: dict[int, tuple[Asking[T], list[Request]]] = {}

    def advance(position: int, asking: Asking[T], results: list[Result] | None) -> None:
        try:
            live[position] = (asking, next(asking) if results is None else asking.send(results))
        except StopIteration as stop:
            live.pop(position, None)
            found[position] = stop.value

    for position, asking in enumerate(askings):
        advance(position, asking, None)
    while live:
        waiting = list(live.items())
        results = iter((yield [request for _, (_, batch) in waiting for request in batch]))
        for position, (asking, batch) in waiting:
            advance(position, asking, list(islice(results, len(batch))))
    return [found[position] for position in range(len(askings))]


def as_label(judgment: Judgment, role: Role) -> str:
    """The label of Self-RAG's group whose value is nearest to that of the judgment's label.

    A reflector that stands in for IsSup says `faithful` where constraints and citations read `Fully supported`.
    """
    labels = _GROUPS[role]
    if judgment.labels == labels:
        return judgment.label
    value = judgment.labels.values[judgment.labels.names.index(judgment.label)]
    return min(labels, key=lambda label: abs(label.value - value)).name


Effect = Literal["abstain", "write", "drop", "retrieve"]
_JOINED = re.compile(r"(?P<name>[^=<>:]+)(=(?P<role>\w+))?(>=(?P<gate>[^:]+))?")
_GATE = re.compile(r"(?P<name>[^=<>:]+)<(?P<threshold>[^:]+):(?P<effect>\w+)")


@dataclass(frozen=True, slots=True)
class ScoreTerm:
    """A reflector in the segment score.

    `str()` writes it as `NAME`, `NAME=issup` or `NAME=issup>=0.1`, and `ScoreTerm.parse` reads that back.

    Attributes:
        reflector: its name.
        replaces: the token critique that it replaces, under that critique's weight; None adds a term of its own,
            weighted by `Weights.joined`.
        gate: a segment with any judged place below this is forbidden; None for no gate.
    """

    reflector: str
    replaces: Role | None = None
    gate: float | None = None

    def __post_init__(self) -> None:
        check_reflector(self.reflector)
        if self.replaces is not None:
            choice(f"role of {self.reflector}", self.replaces, TOKEN_TERMS)
            object.__setattr__(self, "replaces", Role(self.replaces))
        if self.gate is not None:
            check_finite(f"gate of {self.reflector}", self.gate)

    def __str__(self) -> str:
        role = f"={self.replaces}" if self.replaces else ""
        return f"{self.reflector}{role}" + ("" if self.gate is None else f">={self.gate!r}")

    @classmethod
    def parse(cls, text: str) -> ScoreTerm:
        """Read `hallucination_detection=issup>=0.1`."""
        found = _JOINED.fullmatch(text.replace(" ", ""))
        if found is None:
            raise UserError(f"reflector {text!r}: write NAME, NAME=issup or NAME=issup>=0.1")
        gate, role = found["gate"], cast(Role | None, found["role"])
        return cls(found["name"], role, None if gate is None else as_number(gate, text))


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A reflector that decides before anything is written.

    `str()` writes it as `NAME<0.5:abstain`, and `Guardrail.parse` reads that back.

    Attributes:
        reflector: its name.
        threshold: compared with the mean score of its judgments; an undefined judgment never acts.
        effect: what happens below the threshold. `abstain`: judge the question and the passages found for it, give
            the fixed text in place of an answer. `write`: judge the same at every search, write without evidence.
            `drop`: judge each passage alone, leave out this one. `retrieve`: judge the question alone before anything
            is searched, search below and write without evidence above, whatever the model's own decision.
    """

    reflector: str
    threshold: float
    effect: Effect = "abstain"

    def __post_init__(self) -> None:
        check_reflector(self.reflector)
        check_finite(f"threshold of {self.reflector}", self.threshold)
        choice(f"effect of {self.reflector}", self.effect, get_args(Effect))

    def __str__(self) -> str:
        return f"{self.reflector}<{self.threshold!r}:{self.effect}"

    @classmethod
    def parse(cls, text: str) -> Guardrail:
        """Read `answerability<0.5:abstain`."""
        found = _GATE.fullmatch(text.replace(" ", ""))
        if found is None:
            raise UserError(f"gate {text!r}: write NAME<THRESHOLD:EFFECT, such as answerability<0.5:abstain")
        effect: Any = found["effect"]
        return cls(found["name"], as_number(found["threshold"], text), effect)


Part = TypeVar("Part", ScoreTerm, Guardrail)


def parts(given: Any, kind: type[Part]) -> tuple[Part, ...]:
    """`ScoreTerm` or `Guardrail` values from values, their strings, or one of either; no reflector twice."""
    items = [given] if isinstance(given, str | ScoreTerm | Guardrail) else given
    if not isinstance(items, Iterable):
        raise UserError(f"{given!r:.80}: give a list of {kind.__name__} or of their strings")
    found = []
    for item in items:
        made = kind.parse(item) if isinstance(item, str) else item
        if not isinstance(made, kind):
            raise UserError(f"{item!r:.80}: give a {kind.__name__} or its string")
        found.append(made)
    keys = [(part.reflector, part.effect if isinstance(part, Guardrail) else "") for part in found]
    if twice := next((name for name, effect in keys if keys.count((name, effect)) > 1), None):
        raise UserError(f"reflector {twice!r} is named twice")
    return tuple(found)


def distinct_roles(joined: Iterable[ScoreTerm]) -> None:
    """Refuse two reflectors for one critique."""
    replaced = [part.replaces for part in joined if part.replaces is not None]
    if twice := next((role for role in replaced if replaced.count(role) > 1), None):
        raise UserError(f"two reflectors replace {twice}; let one of them join with a term of its own")
