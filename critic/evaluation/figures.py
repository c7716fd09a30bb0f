"""Figures of a critic against gold labels, with bootstrap intervals. Pure numbers; knows no critic and no file.

A case without a judgment counts as wrong, and is left out of the calibration figures; how many there were is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from critic.cases import GROUPS, Labelled
from selfrag.evaluation.intervals import Estimate, Floats, bootstrap
from selfrag.evaluation.metrics.calibration import BINS, equal_bins, error_statistic
from selfrag.evaluation.metrics.classification import macro_f1
from selfrag.reflection.judgment import Judgment


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one group, or of a part of it.

    Attributes:
        group: the reflection group.
        accuracy: share of right labels.
        macro_f1: mean F1 of the labels that occur in gold.
        ece: expected calibration error: mean distance of confidence and accuracy over `BINS`.
        brier: mean squared distance of the distribution from the gold label, summed over labels; 0 to 2.
        coverage: mean probability mass on the labels.
        confusion: cases by gold label (rows) and judged label (columns; the last one is no judgment).
        undefined: cases without a judgment.
    """

    group: str
    accuracy: Estimate
    macro_f1: Estimate
    ece: Estimate
    brier: Estimate
    coverage: float
    confusion: tuple[tuple[int, ...], ...]
    undefined: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        named = {name: getattr(self, name).as_dict() for name in ("accuracy", "macro_f1", "ece", "brier")}
        return {
            **named,
            "coverage": None if self.coverage != self.coverage else self.coverage,
            "labels": list(GROUPS[self.group].names),
            "confusion": [list(row) for row in self.confusion],
            "undefined": self.undefined,
        }


def figures(rows: Sequence[Labelled], judgments: Sequence[Judgment | None], *, seed: int = 0) -> Figures:
    """Figures of rows of one group.

    Args:
        rows: at least one, all of one group.
        judgments: one a row.
        seed: of the intervals.

    Raises:
        ValueError: no rows, several groups, or another number of judgments.
    """
    groups = {row.case.group for row in rows}
    if len(groups) != 1 or len(rows) != len(judgments):
        raise ValueError(f"{len(rows)} rows of {len(groups)} groups with {len(judgments)} judgments")
    (group,) = groups
    names = GROUPS[group].names
    gold = np.array([names.index(row.label) for row in rows])
    judged = np.array([len(names) if j is None else names.index(j.label) for j in judgments])
    known = [(j.distribution, y) for j, y in zip(judgments, gold.tolist(), strict=True) if j is not None]
    probabilities = np.array([p for p, _ in known], dtype=np.float64).reshape(-1, len(names))
    truth = np.eye(len(names))[[y for _, y in known]].reshape(-1, len(names))
    return Figures(
        group,
        bootstrap(len(rows), _mean((gold == judged).astype(np.float64)), seed),
        bootstrap(len(rows), _macro_f1(gold, judged, len(names)), seed),
        bootstrap(len(known), calibration_error(probabilities, truth), seed),
        bootstrap(len(known), _mean(((probabilities - truth) ** 2).sum(axis=1)), seed),
        float(np.mean([j.coverage for j in judgments if j is not None])) if known else float("nan"),
        _confusion(gold, judged, len(names)),
        len(rows) - len(known),
    )


def calibration_error(probabilities: Floats, truth: Floats, bins: int = BINS) -> Callable[[Floats], Floats]:
    """Expected calibration error of bootstrap samples, from distributions and gold [n, labels], one-hot."""
    if not len(probabilities):
        return error_statistic(np.empty(0), np.empty(0, dtype=np.intp))
    chosen, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return error_statistic(confidence - truth[np.arange(len(truth)), chosen], equal_bins(confidence, bins))


def _mean(values: Floats) -> Callable[[Floats], Floats]:
    def statistic(counts: Floats) -> Floats:
        mean: Floats = counts @ values / counts.sum(axis=1)
        return mean

    return statistic


def _macro_f1(gold: NDArray[Any], judged: NDArray[Any], labels: int) -> Callable[[Floats], Floats]:
    """Mean F1 over the labels that a sample's gold holds; a label never judged has F1 0."""
    is_gold = np.eye(labels)[gold]
    is_judged = np.eye(labels + 1)[judged][:, :labels]
    return lambda counts: macro_f1(counts @ (is_gold * is_judged), counts @ is_gold, counts @ is_judged)


def _confusion(gold: NDArray[Any], judged: NDArray[Any], labels: int) -> tuple[tuple[int, ...], ...]:
    table = np.zeros((labels, labels + 1), dtype=int)
    np.add.at(table, (gold, judged), 1)
    return tuple(tuple(row) for row in table.tolist())
