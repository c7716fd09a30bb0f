from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.evaluation.intervals import auc, mean, pooled_auc, win_matrix

scores = st.lists(st.integers(0, 5).map(float), max_size=4)


def test_auc_by_hand() -> None:
    # 0.8 beats both, 0.4 beats 0.1 and ties with 0.4: 2 + 1.5 of 4 pairs
    assert auc([0.8, 0.4], [0.4, 0.1]) == pytest.approx(3.5 / 4)
    assert auc([1.0], [0.0]) == 1.0
    assert auc([0.0], [1.0]) == 0.0
    assert auc([0.5, 0.5], [0.5]) == 0.5
    assert math.isnan(auc([], [1.0]))


@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=4))
def test_win_matrix_is_wins_of_every_pair_of_items(items: list[tuple[list[float], list[float]]]) -> None:
    right, wrong = [r for r, _ in items], [w for _, w in items]
    expected = [[sum((a > b) + 0.5 * (a == b) for a in r for b in w) for w in wrong] for r in right]
    np.testing.assert_allclose(win_matrix(right, wrong), expected)


def test_mean_with_its_interval() -> None:
    values = [1.0] * 60 + [0.0] * 40
    found = mean(values, seed=1)
    assert found.value == pytest.approx(0.6)
    assert found.n == 100
    # normal approximation: 0.6 +- 1.96 * sqrt(0.24 / 100) = 0.504 .. 0.696
    assert found.low == pytest.approx(0.504, abs=0.02)
    assert found.high == pytest.approx(0.696, abs=0.02)
    assert found == mean(values, seed=1)
    assert mean([1.0, 1.0]).as_dict() == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 2}


def test_one_item_has_no_interval_and_none_has_no_value() -> None:
    one, none = mean([0.5]), mean([])
    assert one.value == 0.5
    assert one.as_dict()["low"] is None
    assert math.isnan(none.value)
    assert none.n == 0


def test_pooled_auc_pools_scores_and_resamples_items() -> None:
    right, wrong = [[0.9], [0.3]], [[0.1, 0.2], [0.4]]
    found = pooled_auc(right, wrong, seed=3)
    assert found.value == pytest.approx(auc([0.9, 0.3], [0.1, 0.2, 0.4]))  # 5 of 6
    assert found.n == 2
    # samples are item 1 twice (AUC 1), item 2 twice (0) or both (5/6)
    assert (found.low, found.high) == (0.0, 1.0)
