"""Figures of a critic against labelled rows, with bootstrap intervals, by group, label source, data set and rule.

A case without a judgment counts as wrong, and is left out of the calibration figures; how many there were is told.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from critic.cases import GROUPS, Critic, Labelled
from critic.tables import markdown
from selfrag.evaluation.intervals import Estimate, Floats, bootstrap, mean
from selfrag.evaluation.metrics.classification import BINS, equal_bins, error_statistic, macro_f1
from selfrag.reflection.judgment import Judgment

HUMAN = "human"
"""`label_source` of rows that a person judged."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one group, or of a part of it."""

    group: str
    accuracy: Estimate
    macro_f1: Estimate  # over the labels that occur in gold
    ece: Estimate  # expected calibration error: mean distance of confidence and accuracy over `BINS`
    brier: Estimate  # mean squared distance of the distribution from the gold label, summed over labels; 0 to 2
    coverage: float  # mean probability mass on the labels
    confusion: tuple[tuple[int, ...], ...]  # by gold label (rows) and judged label (columns; the last: no judgment)
    undefined: int  # cases without a judgment

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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one critic."""

    groups: Mapping[str, Figures]  # group -> figures on all its rows
    parts: Mapping[str, Mapping[str, Figures]]  # group -> `human`, `derived` or `dataset/rule` -> figures
    seconds: float = 0.0  # taken by the judging
    judgments: Sequence[Judgment | None] = field(default=(), repr=False)  # one a row, in the order of the rows
    shortened: int = 0  # rows of which a prompt could not hold every part whole

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
    """Let a critic judge all rows, of any groups, and compare with their labels; `seed` is of the intervals."""
    started = time.perf_counter()
    judgments = critic.judge([row.case for row in rows])
    return compare(rows, judgments, seed=seed, seconds=time.perf_counter() - started)


def compare(
    rows: Sequence[Labelled], judgments: Sequence[Judgment | None], *, seed: int = 0, seconds: float = 0.0
) -> Evaluation:
    """Figures of judgments that were made already."""
    members: dict[str, dict[str, list[int]]] = {group: defaultdict(list) for group in GROUPS}
    for number, row in enumerate(rows):
        source = HUMAN if row.label_source == HUMAN else "derived"
        for part in ("", source, f"{row.dataset}/{row.rule}"):
            members[row.case.group][part].append(number)
    found = {
        group: {
            part: figures([rows[n] for n in numbers], [judgments[n] for n in numbers], seed=seed)
            for part, numbers in sorted(parts.items())
        }
        for group, parts in members.items()
        if parts
    }
    groups = {group: parts.pop("") for group, parts in found.items()}
    return Evaluation(groups, found, seconds, tuple(judgments))


def figures(rows: Sequence[Labelled], judgments: Sequence[Judgment | None], *, seed: int = 0) -> Figures:
    """Figures of rows of one group, at least one; `seed` is of the intervals.

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
    is_gold, is_judged = np.eye(len(names))[gold], np.eye(len(names) + 1)[judged][:, : len(names)]

    def f1(counts: Floats) -> Floats:
        """Over the labels that a sample's gold holds; a label never judged has F1 0."""
        return macro_f1(counts @ (is_gold * is_judged), counts @ is_gold, counts @ is_judged)

    confusion = np.zeros((len(names), len(names) + 1), dtype=int)
    np.add.at(confusion, (gold, judged), 1)
    return Figures(
        group,
        mean([float(right) for right in gold == judged], seed=seed),
        bootstrap(len(rows), f1, seed),
        bootstrap(len(known), calibration_error(probabilities, truth), seed),
        mean([float(distance) for distance in ((probabilities - truth) ** 2).sum(axis=1)], seed=seed),
        float(np.mean([j.coverage for j in judgments if j is not None])) if known else float("nan"),
        tuple(tuple(row) for row in confusion.tolist()),
        len(rows) - len(known),
    )


def calibration_error(probabilities: Floats, truth: Floats, bins: int = BINS) -> Callable[[Floats], Floats]:
    """Expected calibration error of bootstrap samples, from distributions and gold [n, labels], one-hot."""
    if not len(probabilities):
        return error_statistic(np.empty(0), np.empty(0, dtype=np.intp))
    chosen, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return error_statistic(confidence - truth[np.arange(len(truth)), chosen], equal_bins(confidence, bins))


PAPER: Mapping[str, Mapping[str, float]] = {
    "Llama2-7B (paper)": {"Retrieve": 0.938, "IsRel": 0.802, "IsSup": 0.935, "IsUse": 0.735},
    "FLAN-3B (paper)": {"Retrieve": 0.856, "IsRel": 0.820, "IsSup": 0.731, "IsUse": 0.721},
}
"""Base model -> group -> accuracy of the paper's critics against GPT-4's labels (arXiv 2310.11511, Figure 4).

Another measure, and other data, than accuracy against people: read them beside ours, not against ours.
"""

Named = Mapping[str, Evaluation]


def report(evaluations: Named, main: str) -> str:
    """The whole report.

    Args:
        evaluations: name of a critic -> its evaluation; all on the same rows.
        main: the critic that is shown in full.
    """
    shown = evaluations[main]
    groups = [group for group in GROUPS if group in shown.groups]
    paper = [(name, *[f"{known[group]:.3f}" for group in groups]) for name, known in PAPER.items()]
    header = ("critic", *groups)
    cut = [f"{name} {one.shortened} of {len(one.judgments)}" for name, one in evaluations.items() if one.shortened]
    sections = [
        "## Accuracy, all rows\n",
        markdown(header, [*_across(evaluations, groups, None, "accuracy"), *paper]),
        *([f"Rows with a part shortened to fit the prompt: {'; '.join(cut)}.\n"] if cut else []),
        "## Accuracy, rows labelled by people\n",
        markdown(header, _across(evaluations, groups, HUMAN, "accuracy")),
        "## Macro-F1, all rows\n",
        markdown(header, _across(evaluations, groups, None, "macro_f1")),
        "## Macro-F1, rows labelled by people\n",
        markdown(header, _across(evaluations, groups, HUMAN, "macro_f1")),
        f"## {main} in full\n",
        _full(shown, groups),
    ]
    for group in groups:
        names = GROUPS[group].names
        rows = [(name, *row) for name, row in zip(names, shown.groups[group].confusion, strict=True)]
        sections += [f"### {group}: judged (columns) against gold (rows)\n", markdown(("gold", *names, "none"), rows)]
        sections += [f"### {group}: by source of the label, data set and rule\n", _parts(evaluations, main, group)]
    return "\n".join(sections)


def _across(evaluations: Named, groups: list[str], part: str | None, figure: str) -> list[tuple[str, ...]]:
    """One figure of every critic in every group, or in a part of it."""
    rows = []
    for name, one in evaluations.items():
        found = [one.groups.get(group) if part is None else one.parts.get(group, {}).get(part) for group in groups]
        rows.append((name, *["-" if f is None else _interval(getattr(f, figure)) for f in found]))
    return rows


def _full(evaluation: Evaluation, groups: list[str]) -> str:
    rows = []
    for group in groups:
        found = evaluation.groups[group]
        estimates = (found.accuracy, found.macro_f1, found.ece, found.brier)
        rows.append((group, found.accuracy.n, *map(_interval, estimates), f"{found.coverage:.3f}", found.undefined))
    return markdown(("group", "rows", "accuracy", "macro-F1", "ECE", "Brier", "coverage", "no judgment"), rows)


def _parts(evaluations: Named, main: str, group: str) -> str:
    others = {name: one.parts.get(group, {}) for name, one in evaluations.items() if name != main}
    rows = []
    for part, found in evaluations[main].parts[group].items():
        rivals = [parts[part].accuracy.value if part in parts else None for parts in others.values()]
        cells = ["-" if rival is None else f"{rival:.3f}" for rival in rivals]
        rows.append((part, found.accuracy.n, _interval(found.accuracy), f"{found.brier.value:.3f}", *cells))
    return markdown(("part", "rows", main, "Brier", *others), rows)


def _interval(estimate: Estimate) -> str:
    if not estimate.defined:
        return "-"
    if estimate.low != estimate.low:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
