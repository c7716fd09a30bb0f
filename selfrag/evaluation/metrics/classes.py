"""Precision, recall and F1 of each class with bootstrap intervals, and their weighted and macro means. Pure numbers.

A prediction may be None: nothing was predicted, which counts against recall and never against precision. A share of
nothing (a class never predicted) is 0, as scikit-learn's `zero_division=0` has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfrag.evaluation.intervals import Estimate, bootstrap
from selfrag.evaluation.ranking import Floats


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Figures of one class.

    Attributes:
        precision: share of the predictions of this class that are right.
        recall: share of the members of this class that were found.
        f1: their harmonic mean.
        support: members of this class.
    """

    precision: Estimate
    recall: Estimate
    f1: Estimate
    support: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        named = {name: getattr(self, name).as_dict() for name in ("precision", "recall", "f1")}
        return {**named, "support": self.support}


@dataclass(frozen=True, slots=True)
class Classification:
    """Figures of a classifier.

    Attributes:
        classes: by name, in the order asked for.
        accuracy: share of right predictions.
        weighted_f1: mean F1 weighted by the members of each class.
        macro_f1: mean F1 of the classes that have members.
        undefined: items without a prediction.
        confusion: (truth, predicted or None) -> count; only pairs that occur.
    """

    classes: Mapping[str, ClassFigures]
    accuracy: Estimate
    weighted_f1: Estimate
    macro_f1: Estimate
    undefined: int
    confusion: Mapping[tuple[str, str | None], int]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        table: dict[str, dict[str, int]] = {}
        for (truth, predicted), count in self.confusion.items():
            table.setdefault(truth, {})[predicted or ""] = count
        return {
            "classes": {name: found.as_dict() for name, found in self.classes.items()},
            **{name: getattr(self, name).as_dict() for name in ("accuracy", "weighted_f1", "macro_f1")},
            "undefined": self.undefined,
            "confusion": table,
        }


def classification(
    truth: Sequence[str], predicted: Sequence[str | None], classes: Sequence[str], *, seed: int = 0
) -> Classification:
    """Figures of one prediction an item.

    Args:
        truth: class of each item, one of `classes`.
        predicted: the same from a classifier; None or another name where it predicted none of them.
        classes: names, in the order to report.
        seed: of the intervals.

    Raises:
        ValueError: lengths differ, or an item is of no known class.
    """
    if len(truth) != len(predicted):
        raise ValueError(f"{len(truth)} items for {len(predicted)} predictions")
    if unknown := sorted(set(truth) - set(classes)):
        raise ValueError(f"items of unknown class {unknown[0]!r}; known: {', '.join(classes)}")
    wanted = np.array([[name == one for name in classes] for one in truth], dtype=np.float64).reshape(-1, len(classes))
    given = np.array([[name == one for name in classes] for one in predicted], dtype=np.float64)
    given = given.reshape(-1, len(classes))
    known = [one if one in classes else None for one in predicted]
    counts: dict[tuple[str, str | None], int] = {}
    for pair in zip(truth, known, strict=True):
        counts[pair] = counts.get(pair, 0) + 1

    def estimate(figure: Any) -> Estimate:
        def statistic(drawn: Floats) -> Floats:
            return np.asarray(figure(drawn @ (wanted * given), drawn @ wanted, drawn @ given))

        return bootstrap(len(truth), statistic, seed)

    found = {
        name: ClassFigures(
            estimate(lambda hit, _, said, at=at: share(hit[:, at], said[:, at])),
            estimate(lambda hit, are, _, at=at: share(hit[:, at], are[:, at])),
            estimate(lambda hit, are, said, at=at: f1(hit, are, said)[:, at]),
            int(wanted[:, at].sum()),
        )
        for at, name in enumerate(classes)
    }
    return Classification(
        found,
        estimate(lambda hit, are, _: share(hit.sum(axis=1), are.sum(axis=1))),
        estimate(lambda hit, are, said: share((f1(hit, are, said) * are).sum(axis=1), are.sum(axis=1))),
        estimate(macro_f1),
        known.count(None),
        counts,
    )


def share(part: Floats, whole: Floats) -> Floats:
    """`part / whole`, and 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part, dtype=np.float64), where=whole > 0)


def f1(hit: Floats, are: Floats, said: Floats) -> Floats:
    """F1 of each class in each sample.

    Args:
        hit: right predictions [samples, classes].
        are: members, likewise.
        said: predictions, likewise.
    """
    return share(2 * hit, are + said)


def macro_f1(hit: Floats, are: Floats, said: Floats) -> Floats:
    """Mean F1 [samples] of the classes that have members in the sample; arguments as `f1`."""
    present = (are > 0).astype(np.float64)
    return share((f1(hit, are, said) * present).sum(axis=1), present.sum(axis=1))
