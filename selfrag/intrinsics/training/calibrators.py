"""From a model's own probabilities to how often it is right: temperature, then isotonic regression, out of fold.

Pure numbers. After Thermometer (arXiv 2403.08819), which the paper's uncertainty adapter imitates: calibrate the base
model's answers afterwards, without changing them, then teach an adapter what the calibrator says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfrag.errors import UserError, require
from selfrag.evaluation.intervals import Floats

FOLDS = 10


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A fitted calibrator.

    Attributes:
        temperature: the options' log-probabilities are divided by it.
        confidence: borders of the isotonic steps, rising [n]; empty for temperature alone.
        accuracy: the share of right answers there [n].
    """

    temperature: float
    confidence: tuple[float, ...] = ()
    accuracy: tuple[float, ...] = ()

    def __call__(self, logprobs: Sequence[Sequence[float]]) -> Floats:
        """Certainty that the most probable option is right, for each question [n]."""
        found = top_probability(logprobs, self.temperature)
        return np.interp(found, self.confidence, self.accuracy) if self.confidence else found

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"temperature": self.temperature, "confidence": self.confidence, "accuracy": self.accuracy}


def fit(logprobs: Sequence[Sequence[float]], right: Sequence[int], *, isotonic: bool = True) -> Calibrator:
    """Fit one calibrator on all rows.

    Args:
        logprobs: of each question's options.
        right: index of the right option of each.
        isotonic: map what the temperature leaves through a rising step function.

    Raises:
        UserError: too few rows.
        MissingExtraError: scikit-learn or scipy is not installed.
    """
    if len(logprobs) < FOLDS:
        raise UserError(f"{len(logprobs)} questions are too few to calibrate on; give at least {FOLDS}")
    temperature = _temperature(logprobs, right)
    if not isotonic:
        return Calibrator(temperature)
    require("sklearn", extra="eval")
    from sklearn.isotonic import IsotonicRegression

    correct = [float(int(np.argmax(row)) == one) for row, one in zip(logprobs, right, strict=True)]
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fitted.fit(top_probability(logprobs, temperature), correct)
    return Calibrator(temperature, tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist()))


def out_of_fold(
    logprobs: Sequence[Sequence[float]],
    right: Sequence[int],
    groups: Sequence[str],
    *,
    isotonic: bool = True,
    folds: int = FOLDS,
    seed: int = 0,
) -> Floats:
    """Certainty of each question [n] by a calibrator that has not seen it.

    Args:
        logprobs: of each question's options.
        right: index of the right option of each.
        groups: data set of each question; each has its own calibrator, because models err differently on each.
        isotonic: as `fit`.
        folds: parts of a data set; each is judged by a calibrator of the others.
        seed: of the parts.

    Raises:
        UserError: a data set is too small.
    """
    result = np.zeros(len(logprobs))
    for group in sorted(set(groups)):
        members = np.array([i for i, one in enumerate(groups) if one == group])
        if len(members) < folds * FOLDS:
            raise UserError(f"{group}: {len(members)} questions are too few for {folds} folds; give {folds * FOLDS}")
        order = np.random.default_rng(seed).permutation(members)
        for part in np.array_split(order, folds):
            held = set(part.tolist())
            others = [i for i in members.tolist() if i not in held]
            fitted = fit([logprobs[i] for i in others], [right[i] for i in others], isotonic=isotonic)
            result[part] = fitted([logprobs[i] for i in part])
    return result


def top_probability(logprobs: Sequence[Sequence[float]], temperature: float) -> Floats:
    """Probability of each question's most probable option after dividing log-probabilities by `temperature` [n]."""
    return np.array([_softmax(row, temperature).max() for row in logprobs])


def decile(certainty: float) -> int:
    """0 to 9; digit d means (5 + 10 d) percent."""
    return min(9, max(0, int(certainty * 10)))


def _temperature(logprobs: Sequence[Sequence[float]], right: Sequence[int]) -> float:
    """The temperature under which the right options are most probable (Guo et al., arXiv 1706.04599)."""
    require("scipy", extra="eval")
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        chances = [_softmax(row, np.exp(log_temperature))[one] for row, one in zip(logprobs, right, strict=True)]
        return -float(np.mean(np.log(np.maximum(chances, 1e-12))))

    return float(np.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded").x))


def _softmax(row: Sequence[float], temperature: float) -> Floats:
    scaled = np.asarray(row, dtype=np.float64) / temperature
    shares: Floats = np.exp(scaled - scaled.max())
    return np.asarray(shares / shares.sum())
