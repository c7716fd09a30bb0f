"""Agreement of teachers: kappa against a library and by hand, intervals, and what was labelled by one only."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from critic.agreement import compare
from critic.cases import GROUPS

GRADES = list(GROUPS["IsUse"].names)
LABELS = st.sampled_from(GRADES)


def labels(values):
    return {f"c{n}": value for n, value in enumerate(values)}


def test_kappa_by_hand() -> None:
    """20 both Yes, 15 both No, 5 and 10 apart: observed 0.7, by chance 0.5, kappa 0.4."""
    one = ["Relevant"] * 25 + ["Irrelevant"] * 25
    two = ["Relevant"] * 20 + ["Irrelevant"] * 5 + ["Relevant"] * 10 + ["Irrelevant"] * 15
    found = compare("a", "b", "IsRel", labels(one), labels(two))
    assert found.confusion == ((20, 5), (10, 15))
    assert found.agreement.value == pytest.approx(0.7)
    assert found.kappa.value == pytest.approx(0.4)
    assert found.kappa.low < 0.4 < found.kappa.high
    assert found.weighted is None
    assert found.kappa.n == 50


@settings(max_examples=40)
@given(st.lists(st.tuples(LABELS, LABELS), min_size=2, max_size=40))
def test_kappa_is_that_of_scikit_learn(pairs) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    one, two = zip(*pairs, strict=True)
    found = compare("a", "b", "IsUse", labels(one), labels(two), rounds=10)
    for ours, weights in ((found.kappa, None), (found.weighted, "quadratic")):
        if set(one) == set(two) and len(set(one)) == 1:
            assert math.isnan(ours.value)
        else:
            assert ours.value == pytest.approx(metrics.cohen_kappa_score(one, two, labels=GRADES, weights=weights))


def test_only_shared_cases_are_compared_and_the_others_counted() -> None:
    one = {"x": "Relevant", "y": "Relevant", "z": "Irrelevant"}
    two = {"y": "Relevant", "z": "Irrelevant", "v": "Relevant", "w": "Relevant"}
    found = compare("a", "b", "IsRel", one, two)
    assert (found.agreement.n, found.only_first, found.only_second) == (2, 1, 2)
    assert found.agreement.value == 1.0


def test_nothing_shared_is_undefined_not_zero() -> None:
    found = compare("a", "b", "IsRel", {"x": "Relevant"}, {"y": "Relevant"})
    assert found.agreement.n == 0
    assert math.isnan(found.kappa.value)
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["kappa"]["value"] is None
