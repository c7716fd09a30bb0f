"""Precision, recall and F1 by hand and against scikit-learn; JAFS and hallucination figures built on them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    HALLUCINATED,
    UNANSWERABLE,
    Outcome,
    classification,
    detection,
    flagged,
    joint_figures,
)


def test_answerability_by_hand() -> None:
    found = classification(list("UUAA"), list("UAAA"), ("U", "A"))
    unanswerable, answerable = found.classes["U"], found.classes["A"]
    assert (unanswerable.precision.value, unanswerable.recall.value) == (1.0, 0.5)
    assert unanswerable.f1.value == pytest.approx(2 / 3)
    assert answerable.precision.value == pytest.approx(2 / 3)
    assert answerable.recall.value == 1.0
    assert answerable.f1.value == pytest.approx(0.8)
    assert found.weighted_f1.value == pytest.approx((2 / 3 + 0.8) / 2)
    assert found.accuracy.value == 0.75
    assert found.confusion == {("U", "U"): 1, ("U", "A"): 1, ("A", "A"): 2}
    assert unanswerable.support == answerable.support == 2


def test_no_prediction_costs_recall_and_not_precision() -> None:
    found = classification(list("UUAA"), ["U", None, "A", "other"], ("U", "A"))
    assert found.classes["U"].precision.value == 1.0
    assert found.classes["U"].recall.value == 0.5
    assert found.accuracy.value == 0.5
    assert found.undefined == 2
    assert found.as_dict()["confusion"] == {"U": {"U": 1, "": 1}, "A": {"A": 1, "": 1}}


def test_a_class_never_predicted_has_zeros_and_no_items_have_no_figure() -> None:
    found = classification(["U", "A"], ["A", "A"], ("U", "A"))
    assert found.classes["U"].precision.value == found.classes["U"].f1.value == 0.0
    assert math.isnan(classification([], [], ("U", "A")).accuracy.value)


def test_bad_items_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown class 'X'"):
        classification(["X"], ["U"], ("U", "A"))
    with pytest.raises(ValueError, match="1 items for 2"):
        classification(["U"], ["U", "A"], ("U", "A"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30))
def test_figures_agree_with_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    truth, predicted = [t for t, _ in pairs], [p for _, p in pairs]
    found = classification(truth, predicted, ("a", "b", "c"))
    precision, recall, f1, support = sklearn.precision_recall_fscore_support(
        truth, predicted, labels=["a", "b", "c"], zero_division=0
    )
    for at, figures in enumerate(found.classes.values()):
        assert figures.precision.value == pytest.approx(precision[at])
        assert figures.recall.value == pytest.approx(recall[at])
        assert figures.f1.value == pytest.approx(f1[at])
        assert figures.support == support[at]
    assert found.weighted_f1.value == pytest.approx(
        sklearn.f1_score(truth, predicted, average="weighted", zero_division=0)
    )
    present = sorted(set(truth))
    macro = sklearn.f1_score(truth, predicted, labels=present, average="macro", zero_division=0)
    assert found.macro_f1.value == pytest.approx(macro)


def test_jafs_by_hand() -> None:
    outcomes = [
        Outcome(answerable=False, answered=False),
        Outcome(answerable=True, answered=True, faithfulness=0.8),
        Outcome(answerable=False, answered=True, faithfulness=1.0),
        Outcome(answerable=True, answered=False),
    ]
    assert [one.jafs for one in outcomes] == [1.0, 0.8, 0.0, 0.0]
    found = joint_figures(outcomes)
    assert found.jafs.value == pytest.approx(0.45)
    assert found.faithfulness.value == 0.8
    assert found.responses == 1
    assert found.answerability.classes[UNANSWERABLE].f1.value == pytest.approx(0.5)
    assert found.answerability.classes[ANSWERABLE].f1.value == pytest.approx(0.5)


def test_an_answer_whose_faithfulness_is_unknown_is_left_out_and_counted() -> None:
    found = joint_figures([Outcome(answerable=True, answered=True), Outcome(answerable=False, answered=False)])
    assert found.jafs.value == 1.0
    assert found.jafs.n == 1
    assert found.unknown == 1
    assert found.responses == 1
    assert found.as_dict()["faithfulness"]["value"] is None
    with pytest.raises(ValueError, match="not between"):
        Outcome(answerable=True, answered=True, faithfulness=1.5)


def test_a_response_is_flagged_by_its_worst_sentence() -> None:
    assert flagged([0.9, 0.09]) is True
    assert flagged([0.9, 0.1]) is False
    assert flagged([None, 0.05]) is True
    assert flagged([None, None]) is None
    assert flagged([]) is None
    assert flagged([0.4], below=0.5) is True


def test_hallucinated_responses_by_hand() -> None:
    # Four hallucinated, of which two found and one not judged; one false alarm: P 2/3, R 2/4.
    found = detection([True, True, True, True, False, False], [True, True, False, None, True, False])
    figures = found.classes[HALLUCINATED]
    assert figures.precision.value == pytest.approx(2 / 3)
    assert figures.recall.value == 0.5
    assert figures.f1.value == pytest.approx(4 / 7)
    assert found.undefined == 1
