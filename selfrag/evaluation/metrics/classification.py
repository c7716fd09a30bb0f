"""Precision, recall and F1 of classes, hallucination detection, JAFS; calibration error and Brier score of confidences.

A prediction may be None: nothing was predicted, which counts against recall and never against precision. A share of
nothing (a class never predicted) is 0, as scikit-learn's `zero_division=0` has it. Source of hallucination detection
(section 4.2, table 8) and of joint answerability and faithfulness (sections 5.2.2 and 7.1): "A Library of LLM
Intrinsics for RAG" (arXiv 2504.11704).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfrag.common.errors import UserError, count_of, require
from selfrag.evaluation.intervals import (
    Estimate,
    FloatArray,
    bootstrap,
    effective_items,
    json_values,
    mean,
    share,
)
from selfrag.render.figures import save


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Precision, recall and F1 of one class, and the number of its members."""

    precision: Estimate
    recall: Estimate
    f1: Estimate
    support: int


@dataclass(frozen=True, slots=True)
class Classification:
    """Figures of a classifier."""

    classes: Mapping[str, ClassFigures]  # by name, in the order asked for
    accuracy: Estimate  # share of right predictions
    weighted_f1: Estimate  # mean F1 weighted by the members of each class
    macro_f1: Estimate  # mean F1 of the classes that have members
    undefined: int  # items without a prediction
    # (truth, predicted or None) -> count; only pairs that occur
    confusion: Mapping[tuple[str, str | None], int]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        confusion: dict[str, dict[str, int]] = {}
        for (truth, predicted), count in self.confusion.items():
            confusion.setdefault(truth, {})[predicted or ""] = count
        return {**json_values(self), "confusion": confusion}


def classification(
    truth: Sequence[str],
    predicted: Sequence[str | None],
    classes: Sequence[str],
    *,
    seed: int = 0,
) -> Classification:
    """Return the figures of one prediction an item, of classes in the order to report.

    A prediction is None or another name where it is none of the classes.

    Raises:
        ValueError: lengths differ, or an item is of no known class.
    """
    if len(truth) != len(predicted):
        raise ValueError(
            f"{count_of(len(truth), 'items')} for {count_of(len(predicted), 'predictions')}"
        )
    if unknown := sorted(set(truth) - set(classes)):
        raise ValueError(
            f"items of unknown class {unknown[0]!r}; known: {', '.join(classes)}"
        )
    known = [label if label in classes else None for label in predicted]
    # [n, classes]
    gold = _one_hot(truth, classes)
    predictions = _one_hot(known, classes)

    def estimate(figure: Any, effective: float) -> Estimate:
        """Resample a figure of hits, members and predictions, each [draws, classes]."""

        def statistic(drawn: FloatArray) -> FloatArray:
            hits = drawn @ (gold * predictions)
            return np.asarray(figure(hits, drawn @ gold, drawn @ predictions))

        return bootstrap(len(truth), statistic, seed, effective=effective)

    of_classes = {}
    for at, name in enumerate(classes):
        members = gold[:, at]
        called = predictions[:, at]
        of_classes[name] = ClassFigures(
            estimate(
                lambda hits, _, predicted, at=at: share(hits[:, at], predicted[:, at]),
                effective_items(called),
            ),
            estimate(
                lambda hits, members, _, at=at: share(hits[:, at], members[:, at]),
                effective_items(members),
            ),
            estimate(
                lambda *counts, at=at: f1(*counts)[:, at],
                effective_items(members + called),
            ),
            int(members.sum()),
        )

    def accuracy(hits: FloatArray, members: FloatArray, _: FloatArray) -> FloatArray:
        return share(hits.sum(axis=1), members.sum(axis=1))

    def weighted_f1(
        hits: FloatArray, members: FloatArray, predicted: FloatArray
    ) -> FloatArray:
        weighted = f1(hits, members, predicted) * members
        return share(weighted.sum(axis=1), members.sum(axis=1))

    items = float(len(truth))
    return Classification(
        of_classes,
        estimate(accuracy, items),
        estimate(weighted_f1, items),
        estimate(macro_f1, macro_effective(gold)),
        known.count(None),
        dict(Counter(zip(truth, known, strict=True))),
    )


def _one_hot(labels: Sequence[str | None], classes: Sequence[str]) -> FloatArray:
    """Return 1.0 where an item has a class [n, classes]."""
    column = np.array(list(labels), dtype=object).reshape(-1, 1)
    return np.asarray(column == np.array(classes, dtype=object), dtype=np.float64)


def f1(hit: FloatArray, are: FloatArray, said: FloatArray) -> FloatArray:
    """Return F1 of each class in each sample, from right predictions, members and predictions [samples, classes]."""
    return share(2 * hit, are + said)


def macro_f1(hit: FloatArray, are: FloatArray, said: FloatArray) -> FloatArray:
    """Return the mean F1 [samples] of the classes that have members in the sample; arguments as `f1`."""
    present = (are > 0).astype(np.float64)
    return share((f1(hit, are, said) * present).sum(axis=1), present.sum(axis=1))


def macro_effective(members: FloatArray) -> float:
    """Return the items that a mean over classes rests on; the smallest class limits it. `members` are [n, classes]."""
    sizes = members.sum(axis=0)
    present = sizes[sizes > 0]
    if not len(present):
        return 0.0
    return float(len(present) * present.min())


# Hallucination detection

HALLUCINATED, FAITHFUL = "hallucinated", "faithful"


def detection(
    truth: Sequence[bool], flagged: Sequence[bool | None], *, seed: int = 0
) -> Classification:
    """Return the figures of responses that are hallucinated or not, and flagged or not; None counts as not found.

    The table of the paper shows those of the class `HALLUCINATED`.
    """
    names = {True: HALLUCINATED, False: FAITHFUL}
    labels = [names[value] for value in truth]
    predictions = [None if value is None else names[value] for value in flagged]
    return classification(labels, predictions, (HALLUCINATED, FAITHFUL), seed=seed)


# Joint answerability and faithfulness (JAFS)

ANSWERABLE, UNANSWERABLE = "answerable", "unanswerable"


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """What became of one question, whose passages hold an answer or not.

    `faithfulness` of the answer to the passages is from 0 to 1; None where nothing was answered, or nobody could say.
    """

    answerable: bool
    answered: bool
    faithfulness: float | None = None

    def __post_init__(self) -> None:
        if self.faithfulness is not None and not 0 <= self.faithfulness <= 1:
            raise ValueError(f"faithfulness {self.faithfulness} is not between 0 and 1")

    @property
    def jafs(self) -> float | None:
        """Return 1 for abstaining rightly, the faithfulness for answering rightly, else 0; None where not known."""
        if self.answerable and self.answered:
            return self.faithfulness
        return float(not self.answerable and not self.answered)


@dataclass(frozen=True, slots=True)
class JointFigures:
    """Figures of one flow: answering and abstaining as a classifier of the questions, and JAFS.

    `responses` counts answers to answerable questions. Two means read their faithfulness where it is known:
    `faithfulness` counts an abstention on an answerable question as 0 (the paper, section 5.2.2), and
    `response_faithfulness` leaves abstentions out. `unknown` counts questions without a JAFS, because the faithfulness
    of their answer is not known.
    """

    answerability: Classification
    responses: int
    faithfulness: Estimate
    response_faithfulness: Estimate
    jafs: Estimate
    unknown: int


def joint_figures(outcomes: Sequence[FlowOutcome], *, seed: int = 0) -> JointFigures:
    """Return the figures of a flow over questions."""
    labels = (UNANSWERABLE, ANSWERABLE)
    truth, said, faithful, jafs = [], [], list[float | None](), []
    wrong_abstentions = 0
    for outcome in outcomes:
        truth.append(labels[outcome.answerable])
        said.append(labels[outcome.answered])
        jafs.append(outcome.jafs)
        if outcome.answerable and outcome.answered:
            faithful.append(outcome.faithfulness)
        elif outcome.answerable:
            wrong_abstentions += 1
    return JointFigures(
        classification(truth, said, labels, seed=seed),
        len(faithful),
        mean(faithful + [0.0] * wrong_abstentions, seed=seed),
        mean(faithful, seed=seed),
        mean(jafs, seed=seed),
        jafs.count(None),
    )


BINS = 10
"""Stretches of confidence of the paper's figure, and of most of the field's."""

Indices = NDArray[np.intp]
Statistic: TypeAlias = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin that holds predictions: least and largest confidence, how many, their mean confidence, the share right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def equal_bins(confidence: ArrayLike) -> Indices:
    """Return the bin of each confidence, of bins of one width; a border belongs to the upper bin."""
    values = np.asarray(confidence, dtype=np.float64)
    return np.clip((values * BINS).astype(np.intp), 0, BINS - 1)


def adaptive_bins(confidence: ArrayLike, bins: int = BINS) -> Indices:
    """Return the bin of each confidence, of bins with the same number of predictions, as far as ties allow."""
    values = np.asarray(confidence, dtype=np.float64)
    # Equal values share the place of the first of them, so the order of the rows does not matter.
    place = np.searchsorted(np.sort(values), values, side="left")
    return (place * bins // max(1, len(values))).astype(np.intp)


def error_statistic(surplus: FloatArray, bins: Indices) -> Statistic:
    """Return what computes the expected calibration error of bootstrap samples.

    Args:
        surplus: confidence minus correctness of each prediction [n].
        bins: bin of each prediction [n]; the bins of the whole data are those of every sample.
    """
    if not len(surplus):
        return lambda counts: np.full(len(counts), np.nan)
    member = np.eye(int(bins.max()) + 1)[bins] * surplus[:, None]
    return lambda counts: np.asarray(
        np.abs(counts @ member).sum(axis=1) / counts.sum(axis=1)
    )


def calibration_error(
    confidence: Sequence[float],
    correct: Sequence[float],
    *,
    adaptive: bool = False,
    seed: int = 0,
) -> Estimate:
    """Return the expected calibration error: the mean over predictions of |accuracy - confidence| of their bin.

    Bins are of equal width, or of equal counts (`adaptive`). Resampled errors lie above the true one on few rows, so
    the interval does too.

    Raises:
        ValueError: lengths differ, or a confidence is no probability.
    """
    values, right, where = _binned(confidence, correct, adaptive)
    return bootstrap(len(values), error_statistic(values - right, where), seed)


def brier(
    confidence: Sequence[float], correct: Sequence[float], *, seed: int = 0
) -> Estimate:
    """Return the Brier score of a binary event: mean squared distance of confidence and correctness, 0 (best) to 1.

    Raises:
        ValueError: as `calibration_error`.
    """
    values, right, _ = _binned(confidence, correct)
    return mean((values - right) ** 2, seed=seed)


def reliability(
    confidence: Sequence[float],
    correct: Sequence[float],
    *,
    adaptive: bool = False,
) -> tuple[Bin, ...]:
    """Return the bins behind the error, in order of confidence.

    Raises:
        ValueError: as `calibration_error`.
    """
    values, right, where = _binned(confidence, correct, adaptive)
    shown = []
    for number in np.unique(where):
        inside, hits = values[where == number], right[where == number]
        means = float(inside.mean()), float(hits.mean())
        shown.append(Bin(float(inside.min()), float(inside.max()), len(inside), *means))
    return tuple(shown)


def _binned(
    confidence: Sequence[float],
    correct: Sequence[float],
    adaptive: bool = False,
) -> tuple[FloatArray, FloatArray, Indices]:
    values = np.asarray(confidence, dtype=np.float64)
    right = np.asarray(correct, dtype=np.float64)
    if values.shape != right.shape:
        raise ValueError(
            f"{count_of(values.size, 'confidences')} for {count_of(right.size, 'outcomes')}"
        )
    if len(wrong := values[~((values >= 0) & (values <= 1))]):
        raise ValueError(f"no probability: {wrong[0]}")
    return values, right, adaptive_bins(values) if adaptive else equal_bins(values)


def plot_reliability(systems: Mapping[str, Sequence[Bin]], out: Path) -> Path:
    """Draw the reliability diagram: accuracy against confidence, one curve a system, and the predictions in each bin.

    Args:
        systems: name of a system -> its bins, from `reliability`.
        out: a `.png`, `.svg` or `.pdf`; appears when it is complete.

    Raises:
        UserError: there is nothing to draw, or `out` cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    shown = {name: list(bins) for name, bins in systems.items() if bins}
    if not shown:
        raise UserError("no system has a bin: nothing to draw")
    require("matplotlib", extra="eval")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot(
        (0, 1), (0, 1), color="grey", linewidth=1, linestyle="--", label="calibrated"
    )
    for name, bins in shown.items():
        confidence, accuracy, counts = zip(
            *((b.confidence, b.accuracy, b.count) for b in bins), strict=True
        )
        (line,) = upper.plot(
            confidence, accuracy, marker="o", linewidth=1.5, label=name
        )
        lower.plot(confidence, counts, marker="o", linewidth=1, color=line.get_color())
    upper.set(ylabel="share that was right", xlim=(0, 1), ylim=(0, 1))
    lower.set(xlabel="certainty", ylabel="answers", xlim=(0, 1), ylim=(0, None))
    upper.legend(fontsize="small")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    return save(figure, out)
