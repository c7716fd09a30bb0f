"""Balanced rows, and weights that take the length of a passage out of the label."""

from __future__ import annotations

from collections import Counter

import pytest
from student_cases import labelled

from critic.cases import Labelled
from critic.student.training import balanced, length_weights
from selfrag.errors import UserError


def test_every_label_of_a_group_gets_the_same_number():
    rows = labelled(each=5)
    chosen = balanced(rows, {"IsSup": 3, "IsUse": None}, seed=1)
    assert Counter((row.case.group, row.label) for row in chosen) == {
        ("IsSup", "Fully supported"): 3,
        ("IsSup", "Partially supported"): 3,
        ("IsSup", "No support / Contradictory"): 3,
        **{("IsUse", str(i)): 5 for i in range(1, 6)},
    }


def test_small_sources_stay_whole():
    rows = [
        Labelled(f"{name}{i}", labelled(1)[0].case, "Retrieval", name, "", "")
        for name, count in (("small", 3), ("middle", 8), ("large", 50))
        for i in range(count)
    ]
    chosen = balanced(rows, {"Retrieve": 21}, seed=0)
    assert Counter(row.dataset for row in chosen) == {"small": 3, "middle": 8, "large": 10}
    assert [row.id for row in chosen] == [row.id for row in rows if row in chosen]


def test_defect_33_the_draw_is_seeded():
    rows = labelled(each=9)
    first = balanced(rows, {"IsRel": 4}, seed=1)
    assert first == balanced(rows, {"IsRel": 4}, seed=1)
    assert first != balanced(rows, {"IsRel": 4}, seed=2)


def test_unknown_groups_and_empty_results_are_refused():
    with pytest.raises(UserError, match="unknown group 'IsNice'"):
        balanced(labelled(), {"IsNice": 3}, seed=0)
    with pytest.raises(UserError, match="no rows"):
        balanced([], {"IsRel": 3}, seed=0)


def test_labels_weigh_alike_within_a_stretch_of_lengths():
    lengths = [100] * 60 + [10] * 30 + [100] * 30 + [10] * 40
    labels = ["a"] * 90 + ["b"] * 70
    weights = length_weights(["G"] * 160, labels, lengths)
    sums: Counter[tuple[int, str]] = Counter()
    for length, label, weight in zip(lengths, labels, weights, strict=True):
        sums[length, label] += weight
    assert sums[100, "a"] == pytest.approx(sums[100, "b"])
    assert sums[10, "a"] == pytest.approx(sums[10, "b"])
    assert sum(weights) == pytest.approx(160)
