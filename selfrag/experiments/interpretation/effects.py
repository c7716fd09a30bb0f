"""Figures of the counterfactual tests: how often answers change, and whether as the explanation said. Computes only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.evaluation.compare_bootstrap import bootstrap
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.metrics.registry import Part
from selfrag.experiments.interpretation.chance import kappa
from selfrag.experiments.interpretation.claims import Claim
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.interventions import (
    OTHER_ORDER,
    WITHOUT_CITED,
    WITHOUT_FOLLOWED,
    WITHOUT_OTHER_EXAMPLE,
    WITHOUT_OTHERS,
)
from selfrag.experiments.interpretation.reading import GridRun

NAN = float("nan")
PAIRS = ((WITHOUT_CITED, WITHOUT_OTHERS), (WITHOUT_FOLLOWED, WITHOUT_OTHER_EXAMPLE))
"""A change that ought to matter, and the same change where it ought not to."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does, beside its control.

    Attributes:
        test: the change.
        control: the same elsewhere.
        changed: share of the answers that the change alters.
        control_changed: share that the control alters.
        difference: paired, over the replies for which both are defined; above 0 is faithful.
        found_difference: the same of the right answers in the answer.
        undefined: reason to how many replies could not be put to the test.
    """

    test: str
    control: str
    changed: Estimate
    control_changed: Estimate
    difference: Estimate
    found_difference: Estimate
    undefined: dict[str, int]


@dataclass(frozen=True, slots=True)
class Foretold:
    """Whether another order did to the answers what the counterfactual explanations said.

    Attributes:
        changed: share of all answers that another order alters.
        claims: claim to how many made it; None for explanations that claim neither.
        right: share of the claims that came true.
        kappa: agreement of claim and outcome beyond chance.
    """

    changed: Estimate
    claims: dict[str | None, int]
    right: Estimate
    kappa: Estimate


def effects(run: GridRun, cells: Sequence[Cell], *, seed: int = 0) -> list[Effect]:
    """Effects over the replies of some cells together; tests that were not run are left out."""
    found = []
    for test, control in PAIRS:
        tested, others = _rows(run, cells, test), _rows(run, cells, control)
        if tested:
            found.append(_effect(test, control, tested, others, seed))
    return found


def foretold(run: GridRun, cells: Sequence[Cell], *, seed: int = 0) -> Foretold | None:
    """Claims against outcomes, over the replies of some cells together; None where the test was not run."""
    rows = list(_rows(run, cells, OTHER_ORDER).values())
    if not rows:
        return None
    claimed = [row for row in rows if row["scores"]["as_claimed"] is not None]
    pairs: dict[str, list[tuple[bool, bool]]] = {}
    for row in claimed:
        verdicts = (row["claim"] == Claim.CHANGES, row["scores"]["changed"][0] > 0)
        pairs.setdefault(row["id"], []).append(verdicts)
    return Foretold(
        _mean(rows, "changed", seed),
        dict(Counter(row.get("claim") for row in rows)),
        _mean(claimed, "as_claimed", seed),
        kappa(list(pairs.values()), seed=seed),
    )


Rows = dict[tuple[str, str], dict[str, Any]]
"""Records of a test by cell and question."""


def _rows(run: GridRun, cells: Sequence[Cell], test: str) -> Rows:
    return {
        (cell.name, record["id"]): record
        for cell in cells
        for record in run.tested(cell, test) or ()
        if not record["error"]
    }


def _effect(test: str, control: str, tested: Rows, others: Rows, seed: int) -> Effect:
    both = [key for key, row in tested.items() if _defined(row) and key in others and _defined(others[key])]

    def difference(name: str) -> Estimate:
        apart = ((key[1], tested[key]["scores"][name][0] - others[key]["scores"][name][0]) for key in both)
        return _by_question(apart, seed)

    return Effect(
        test,
        control,
        _mean(list(tested.values()), "changed", seed),
        _mean(list(others.values()), "changed", seed),
        difference("changed"),
        difference("answers_changed"),
        dict(Counter(row["undefined"] for row in tested.values() if row["undefined"])),
    )


def _defined(row: dict[str, Any]) -> bool:
    return row["scores"]["changed"] is not None


def _mean(rows: Sequence[dict[str, Any]], name: str, seed: int) -> Estimate:
    return _by_question(((row["id"], row["scores"][name][0]) for row in rows if row["scores"][name] is not None), seed)


def _by_question(values: Iterable[tuple[str, float]], seed: int) -> Estimate:
    """The mean over replies; whole questions are resampled, with all their replies."""
    parts: dict[str, Part] = {}
    for question, value in values:
        top, bottom = parts.get(question, (0.0, 0.0))
        parts[question] = (top + value, bottom + 1.0)
    (draws,) = bootstrap([list(parts.values())], name="questions", seed=seed)
    return Estimate(NAN, NAN, NAN, 0) if draws is None else draws.estimate
