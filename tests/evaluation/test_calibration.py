"""Calibration figures by hand, and against torchmetrics and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.errors import UserError
from selfrag.evaluation.metrics.calibration import (
    adaptive_bins,
    brier,
    calibration_error,
    equal_bins,
    plot_reliability,
    reliability,
)

# Four answers at 0.95 with three right, one at 0.25 that is wrong: 0.8 * 0.2 + 0.2 * 0.25 = 0.21.
CONFIDENCE, CORRECT = [0.95, 0.95, 0.95, 0.95, 0.25], [1, 1, 1, 0, 0]

predictions = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def test_five_answers_by_hand() -> None:
    found = calibration_error(CONFIDENCE, CORRECT)
    assert found.value == pytest.approx(0.21)
    assert found.n == 5
    # (3 * 0.05^2 + 0.95^2 + 0.25^2) / 5
    assert brier(CONFIDENCE, CORRECT).value == pytest.approx((3 * 0.0025 + 0.9025 + 0.0625) / 5)
    low, high = reliability(CONFIDENCE, CORRECT)
    assert (low.count, low.confidence, low.accuracy) == (1, 0.25, 0.0)
    assert (high.count, high.low, high.high) == (4, 0.95, 0.95)
    assert high.accuracy == 0.75


def test_adaptive_bins_hold_equal_counts_and_keep_ties_together() -> None:
    assert adaptive_bins([0.1, 0.2, 0.3, 0.4], 2).tolist() == [0, 0, 1, 1]
    assert adaptive_bins([0.4, 0.1, 0.3, 0.2], 2).tolist() == [1, 0, 1, 0]
    assert len(set(adaptive_bins([0.5] * 7, 3).tolist())) == 1
    # Two bins of two: |0.15 - 0.5| / 2 + |0.85 - 1| / 2
    found = calibration_error([0.1, 0.2, 0.8, 0.9], [1, 0, 1, 1], bins=2, adaptive=True)
    assert found.value == pytest.approx(0.35 / 2 + 0.15 / 2)


def test_a_border_belongs_to_the_upper_bin_and_one_to_the_last() -> None:
    assert equal_bins([0.0, 0.1, 0.0999, 1.0]).tolist() == [0, 1, 0, 9]


def test_nothing_has_no_error() -> None:
    assert math.isnan(calibration_error([], []).value)
    assert math.isnan(brier([], []).value)
    assert reliability([], []) == ()


@pytest.mark.parametrize("wrong", [[1.2], [-0.1], [math.nan]])
def test_what_is_no_probability_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="no probability"):
        calibration_error(wrong, [1])


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 confidences for 1 outcomes"):
        brier([0.1, 0.2], [1])


@given(predictions, st.integers(1, 12), st.booleans())
def test_the_error_is_what_its_bins_say_and_never_above_the_brier_root(
    items: list[tuple[float, bool]], bins: int, adaptive: bool
) -> None:
    confidence, correct = [p for p, _ in items], [float(right) for _, right in items]
    found = calibration_error(confidence, correct, bins=bins, adaptive=adaptive).value
    shown = reliability(confidence, correct, bins=bins, adaptive=adaptive)
    assert sum(one.count for one in shown) == len(items)
    by_bins = sum(one.count * abs(one.accuracy - one.confidence) for one in shown) / len(items)
    assert found == pytest.approx(by_bins, abs=1e-12)
    assert found <= math.sqrt(brier(confidence, correct).value) + 1e-9  # Jensen, twice


def test_equal_bins_agree_with_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    random = np.random.default_rng(0)
    confidence = random.random(500)
    correct = (random.random(500) < confidence**2).astype(float)
    theirs = metrics.binary_calibration_error(torch.tensor(confidence), torch.tensor(correct).int(), n_bins=10)
    assert calibration_error(confidence.tolist(), correct.tolist()).value == pytest.approx(float(theirs), abs=1e-6)


def test_brier_and_both_kinds_of_bins_agree_with_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    random = np.random.default_rng(1)
    confidence = random.random(1000)
    correct = (random.random(1000) < confidence).astype(int)
    assert brier(confidence.tolist(), correct.tolist()).value == pytest.approx(
        sklearn.brier_score_loss(correct, confidence)
    )
    for adaptive, strategy in ((False, "uniform"), (True, "quantile")):
        accuracy, mean = calibration.calibration_curve(correct, confidence, n_bins=10, strategy=strategy)
        shown = reliability(confidence.tolist(), correct.tolist(), adaptive=adaptive)
        np.testing.assert_allclose([one.confidence for one in shown], mean, atol=0.002)
        np.testing.assert_allclose([one.accuracy for one in shown], accuracy, atol=0.011)  # quantile borders move one


def test_the_diagram_appears_whole(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    out = plot_reliability({"base": reliability(CONFIDENCE, CORRECT), "empty": ()}, tmp_path / "plot.png")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]
    with pytest.raises(UserError, match="nothing to draw"):
        plot_reliability({"none": ()}, tmp_path / "other.png")
