"""Epoch plans: nothing lost, nothing doubled, the same again for the same seed, all kinds in every stretch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.errors import UserError
from selfrag.training.packing import plan_epoch

rows = st.lists(st.tuples(st.integers(1, 300), st.sampled_from("abc")), min_size=1, max_size=60)


@given(rows, st.integers(1, 500), st.integers(1, 4), st.integers(0, 9))
def test_every_row_comes_once_within_the_budget_in_balanced_loads(rows, budget, workers, seed):
    lengths = [length for length, _ in rows]
    steps = plan_epoch(lengths, [k for _, k in rows], seed=seed, epoch=0, step_tokens=budget, workers=workers)

    assert sorted(row for step in steps for load in step for row in load) == list(range(len(rows)))
    for step in steps:
        members = [row for load in step for row in load]
        totals = [sum(lengths[row] for row in load) for load in step]
        assert sum(totals) <= budget or len(members) == 1
        assert 1 <= len(step) <= workers
        assert all(totals)
        if len(step) == workers:
            assert max(totals) - min(totals) <= max(lengths[row] for row in members)


def test_an_epoch_is_a_function_of_seed_and_number():
    lengths, kinds = [10] * 50, ["a"] * 50

    def order(seed, epoch):
        return plan_epoch(lengths, kinds, seed=seed, epoch=epoch, step_tokens=40, workers=2)

    assert order(1, 0) == order(1, 0)
    assert len({str(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_every_stretch_holds_all_kinds_in_proportion():
    kinds = ["common"] * 80 + ["rare"] * 20
    steps = plan_epoch([10] * 100, kinds, seed=0, epoch=0, step_tokens=100, workers=2)
    rare = [sum(kinds[row] == "rare" for load in step for row in load) for step in steps]
    assert all(1 <= count <= 3 for count in rare)


def test_no_rows_are_refused():
    with pytest.raises(UserError, match="no training rows"):
        plan_epoch([], [], seed=0, epoch=0, step_tokens=10, workers=1)


def test_a_bound_on_loads_makes_more_of_them_and_changes_no_step():
    lengths, strata = [100] * 12, ["a"] * 12
    plain = plan_epoch(lengths, strata, seed=1, epoch=0, step_tokens=400, workers=1)
    bounded = plan_epoch(lengths, strata, seed=1, epoch=0, step_tokens=400, workers=1, load_tokens=200)
    assert [sorted(row for load in step for row in load) for step in bounded] == [
        sorted(row for load in step for row in load) for step in plain
    ]
    assert all(len(step) == 2 for step in bounded)
    assert all(sum(lengths[row] for row in load) == 200 for step in bounded for load in step)
    wide = plan_epoch(lengths, strata, seed=1, epoch=0, step_tokens=400, workers=4, load_tokens=400)
    assert all(len(step) == 4 for step in wide)  # never fewer than workers
