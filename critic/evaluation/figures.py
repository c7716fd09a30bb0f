"""Figures of a critic against labelled rows, with bootstrap intervals, by group, label source, data set and rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from critic.cases import GROUPS, Critic, Labelled
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


HUMAN = "human"
"""`label_source` of rows that a person judged."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one critic.

    Attributes:
        groups: group -> figures on all its rows.
        parts: group -> name of a part -> figures; names are `human`, `derived`, and `dataset/rule`.
        seconds: time taken by the judging.
        judgments: one a row, in the order of the rows.
        shortened: rows of which a prompt could not hold every part whole.
    """

    groups: Mapping[str, Figures]
    parts: Mapping[str, Mapping[str, Figures]]
    seconds: float = 0.0
    judgments: Sequence[Judgment | None] = field(default=(), repr=False)
    shortened: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, without single judgments; `shortened` only where there are such rows."""
        return {
            "groups": {group: found.as_dict() for group, found in self.groups.items()},
            "parts": {
                group: {name: found.as_dict() for name, found in parts.items()} for group, parts in self.parts.items()
            },
            "seconds": self.seconds,
            **({"shortened": self.shortened} if self.shortened else {}),
        }


def evaluate(critic: Critic, rows: Sequence[Labelled], *, seed: int = 0) -> Evaluation:
    """Let a critic judge all rows and compare with their labels.

    Args:
        critic: any critic.
        rows: labelled rows of any groups.
        seed: of the intervals.
    """
    import time

    started = time.perf_counter()
    judgments = critic.judge([row.case for row in rows])
    return compare(rows, judgments, seed=seed, seconds=time.perf_counter() - started)


def compare(
    rows: Sequence[Labelled], judgments: Sequence[Judgment | None], *, seed: int = 0, seconds: float = 0.0
) -> Evaluation:
    """Figures of judgments that were made already."""
    groups: dict[str, Figures] = {}
    parts: dict[str, dict[str, Figures]] = {}
    pairs = list(zip(rows, judgments, strict=True))
    for group in GROUPS:
        members = [pair for pair in pairs if pair[0].case.group == group]
        if members:
            groups[group] = _figures_of(members, seed)
            parts[group] = {name: _figures_of(found, seed) for name, found in sorted(_parts(members).items())}
    return Evaluation(groups, parts, seconds, tuple(judgments))


def source_of(row: Labelled) -> str:
    """`human` where a person judged, `derived` for all other rows."""
    return HUMAN if row.label_source == HUMAN else "derived"


def _parts(members: list[tuple[Labelled, Judgment | None]]) -> dict[str, list[tuple[Labelled, Judgment | None]]]:
    found: dict[str, list[tuple[Labelled, Judgment | None]]] = defaultdict(list)
    for pair in members:
        row = pair[0]
        found[source_of(row)].append(pair)
        found[f"{row.dataset}/{row.rule}"].append(pair)
    return found


def _figures_of(members: list[tuple[Labelled, Judgment | None]], seed: int) -> Figures:
    rows, judgments = zip(*members, strict=True)
    return figures(rows, judgments, seed=seed)
