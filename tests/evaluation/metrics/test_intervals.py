"""Bootstrap intervals, AUC, classes and calibration by hand, and against scikit-learn and torchmetrics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfrag.errors import UserError
from selfrag.evaluation.intervals import mean, pooled_auc
from selfrag.evaluation.metrics.citations import pair_figures
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    Outcome,
    adaptive_bins,
    brier,
    calibration_error,
    classification,
    equal_bins,
    joint_figures,
    plot_reliability,
    reliability,
)


def test_mean_with_its_interval() -> None:
    values = [1.0] * 60 + [0.0] * 40
    found = mean(values, seed=1)
    assert (found.value, found.n) == (pytest.approx(0.6), 100)
    # normal approximation: 0.6 +- 1.96 * sqrt(0.24 / 100) = 0.504 .. 0.696
    assert (found.low, found.high) == pytest.approx((0.504, 0.696), abs=0.02)
    assert found == mean(values, seed=1)
    assert mean([1.0, 1.0]).as_dict() == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 2}


def test_one_item_has_no_interval_and_none_has_no_value() -> None:
    one = mean([0.5])
    assert (one.value, one.as_dict()["low"], str(one)) == (0.5, None, "0.500 n=1")
    for nothing in (mean([]), pair_figures([], []).f1, classification([], [], ("U", "A")).accuracy, brier([], [])):
        assert (nothing.defined, nothing.n, str(nothing)) == (False, 0, "\N{EN DASH} n=0")
        assert nothing.as_dict()["value"] is None


def test_pooled_auc_pools_scores_and_resamples_items() -> None:
    found = pooled_auc([[0.9], [0.3]], [[0.1, 0.2], [0.4]], seed=3)
    assert found.value == pytest.approx(5 / 6)
    # samples are item 1 twice (AUC 1), item 2 twice (0) or both (5/6)
    assert (found.n, found.low, found.high) == (2, 0.0, 1.0)


def test_answerability_by_hand() -> None:
    found = classification(list("UUAA"), list("UAAA"), ("U", "A"))
    figures = [[one.precision.value, one.recall.value, one.f1.value] for one in found.classes.values()]
    assert figures == [pytest.approx([1.0, 0.5, 2 / 3]), pytest.approx([2 / 3, 1.0, 0.8])]
    assert found.weighted_f1.value == pytest.approx((2 / 3 + 0.8) / 2)
    assert found.accuracy.value == 0.75
    assert found.confusion == {("U", "U"): 1, ("U", "A"): 1, ("A", "A"): 2}
    assert [one.support for one in found.classes.values()] == [2, 2]


def test_no_prediction_costs_recall_and_not_precision() -> None:
    found = classification(list("UUAA"), ["U", None, "A", "other"], ("U", "A"))
    assert (found.classes["U"].precision.value, found.classes["U"].recall.value) == (1.0, 0.5)
    assert (found.accuracy.value, found.undefined) == (0.5, 2)
    assert found.as_dict()["confusion"] == {"U": {"U": 1, "": 1}, "A": {"A": 1, "": 1}}

    with pytest.raises(ValueError, match="unknown class 'X'"):
        classification(["X"], ["U"], ("U", "A"))
    with pytest.raises(ValueError, match="1 items for 2"):
        classification(["U"], ["U", "A"], ("U", "A"))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30))
def test_classes_agree_with_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    truth, predicted = [t for t, _ in pairs], [p for _, p in pairs]
    found = classification(truth, predicted, ("a", "b", "c"))
    expected = sklearn.precision_recall_fscore_support(truth, predicted, labels=["a", "b", "c"], zero_division=0)
    for at, one in enumerate(found.classes.values()):
        figures = (one.precision.value, one.recall.value, one.f1.value, one.support)
        assert figures == pytest.approx(tuple(column[at] for column in expected))
    weighted = sklearn.f1_score(truth, predicted, average="weighted", zero_division=0)
    macro = sklearn.f1_score(truth, predicted, labels=sorted(set(truth)), average="macro", zero_division=0)
    assert (found.weighted_f1.value, found.macro_f1.value) == pytest.approx((weighted, macro))


def test_jafs_by_hand() -> None:
    outcomes = [
        Outcome(answerable=False, answered=False),
        Outcome(answerable=True, answered=True, faithfulness=0.8),
        Outcome(answerable=False, answered=True, faithfulness=1.0),
        Outcome(answerable=True, answered=False),
    ]
    assert [one.jafs for one in outcomes] == [1.0, 0.8, 0.0, 0.0]
    found = joint_figures(outcomes)
    assert (found.jafs.value, found.faithfulness.value, found.responses) == (pytest.approx(0.45), 0.8, 1)
    classes = found.answerability.classes
    assert classes[UNANSWERABLE].f1.value == classes[ANSWERABLE].f1.value == pytest.approx(0.5)


def test_an_answer_whose_faithfulness_is_unknown_is_left_out_and_counted() -> None:
    found = joint_figures([Outcome(answerable=True, answered=True), Outcome(answerable=False, answered=False)])
    assert (found.jafs.value, found.jafs.n, found.unknown, found.responses) == (1.0, 1, 1, 1)
    assert found.as_dict()["faithfulness"]["value"] is None
    with pytest.raises(ValueError, match="not between"):
        Outcome(answerable=True, answered=True, faithfulness=1.5)


# Four answers at 0.95 with three right, one at 0.25 that is wrong: 0.8 * 0.2 + 0.2 * 0.25 = 0.21.
CONFIDENCE, CORRECT = [0.95, 0.95, 0.95, 0.95, 0.25], [1, 1, 1, 0, 0]


def test_five_answers_by_hand() -> None:
    found = calibration_error(CONFIDENCE, CORRECT)
    assert (found.value, found.n) == (pytest.approx(0.21), 5)
    # (3 * 0.05^2 + 0.95^2 + 0.25^2) / 5
    assert brier(CONFIDENCE, CORRECT).value == pytest.approx((3 * 0.0025 + 0.9025 + 0.0625) / 5)
    low, high = reliability(CONFIDENCE, CORRECT)
    assert (low.count, low.confidence, low.accuracy) == (1, 0.25, 0.0)
    assert (high.count, high.low, high.high, high.accuracy) == (4, 0.95, 0.95, 0.75)
    assert (math.isnan(calibration_error([], []).value), reliability([], [])) == (True, ())
    # Adaptive bins hold equal counts and keep ties together: |0.15 - 0.5| / 2 + |0.85 - 1| / 2.
    assert calibration_error([0.1, 0.2, 0.8, 0.9], [1, 0, 1, 1], bins=2, adaptive=True).value == pytest.approx(0.25)
    assert (adaptive_bins([0.4, 0.1, 0.3, 0.2], 2).tolist(), set(adaptive_bins([0.5] * 7, 3))) == ([1, 0, 1, 0], {0})
    # A border belongs to the upper bin, and one to the last.
    assert equal_bins([0.0, 0.1, 0.0999, 1.0]).tolist() == [0, 1, 0, 9]


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([1.2], [1], "no probability"),
        ([math.nan], [1], "no probability: nan"),
        ([0.1, 0.2], [1], "2 confidences for 1 outcomes"),
    ],
)
def test_bad_predictions_are_refused(confidence: list[float], correct: list[int], message: str) -> None:
    for figure in (calibration_error, brier, reliability):
        with pytest.raises(ValueError, match=message):
            figure(confidence, correct)


def test_calibration_agrees_with_torchmetrics_and_scikit_learn() -> None:
    torch = pytest.importorskip("torch")
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    sklearn = pytest.importorskip("sklearn.metrics")
    curve = pytest.importorskip("sklearn.calibration").calibration_curve
    random = np.random.default_rng(1)
    confidence = random.random(1000)
    correct = (random.random(1000) < confidence).astype(int)
    said, right = confidence.tolist(), correct.tolist()
    theirs = torchmetrics.binary_calibration_error(torch.tensor(confidence), torch.tensor(correct), n_bins=10)
    assert calibration_error(said, right).value == pytest.approx(float(theirs), abs=1e-6)
    assert brier(said, right).value == pytest.approx(sklearn.brier_score_loss(correct, confidence))
    for adaptive, strategy in ((False, "uniform"), (True, "quantile")):
        accuracy, mean = curve(correct, confidence, n_bins=10, strategy=strategy)
        shown = reliability(said, right, adaptive=adaptive)
        np.testing.assert_allclose([one.confidence for one in shown], mean, atol=0.002)
        np.testing.assert_allclose([one.accuracy for one in shown], accuracy, atol=0.011)  # quantile borders move one


def test_the_diagram_appears_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = plot_reliability({"base": reliability(CONFIDENCE, CORRECT), "empty": ()}, tmp_path / "plot.png")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]
    with pytest.raises(UserError, match="nothing to draw"):
        plot_reliability({"none": ()}, tmp_path / "other.png")
