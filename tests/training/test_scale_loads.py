"""The plan for many processes: every row once a step, the same number of loads everywhere, no load too large."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.training.packing import plan_epoch, weight_of
from selfrag.training.rows import Example, Group
from selfrag.training.scale import Loads
from selfrag.training.settings import Weighting


def example(number, length):
    """A row one can recognise: all its ids are its number; the first token is the prompt."""
    return Example((number,) * length, (-100, *[number] * (length - 1)), (int(Group.TEXT),) * length)


lengths = st.lists(st.integers(2, 40), min_size=1, max_size=40)


@given(lengths, st.integers(1, 4), st.integers(1, 120), st.integers(1, 9))
def test_a_step_is_dealt_out_whole_and_evenly(sizes, processes, micro, rows_a_step):
    examples = [example(number, size) for number, size in enumerate(sizes)]
    steps = plan_epoch(sizes, ["a"] * len(sizes), seed=1, epoch=0, step_tokens=1, workers=1, step_rows=rows_a_step)
    weighting = Weighting()
    loads = Loads(examples, steps, weighting, processes, micro)

    assert len(loads) == len(steps) * processes * loads.accumulation
    for number, step in enumerate(steps):
        mine = [loads[number * loads.per_step + place] for place in range(loads.per_step)]
        counted = [load for load in mine if float(load.pack.weights.sum()) > 0]
        seen = sorted(i for load in counted for i in set(load.pack.ids[0].tolist()))
        assert seen == sorted(row for part in step for row in part)
        assert loads.tokens_of(number) == sum(sizes[row] for row in seen)
        total = sum(weight_of(examples[row], weighting) for row in seen)
        assert all(load.total == pytest.approx(total) for load in mine)
        assert sum(float(load.pack.weights.sum()) for load in mine) == pytest.approx(total, rel=1e-4)
        assert all(sum(load.pack.row_lengths) <= max(micro, max(sizes)) for load in mine)


@given(lengths, st.integers(1, 9))
def test_steps_of_a_number_of_rows_lose_none(sizes, rows_a_step):
    steps = plan_epoch(sizes, ["a"] * len(sizes), seed=0, epoch=0, step_tokens=1, workers=2, step_rows=rows_a_step)
    counts = [sum(map(len, step)) for step in steps]
    assert sum(counts) == len(sizes)
    assert set(counts[:-1]) <= {rows_a_step}
    assert sorted(row for step in steps for load in step for row in load) == list(range(len(sizes)))


def test_more_processes_than_rows_leave_some_without_weight():
    loads = Loads([example(0, 5)], [((0,),)], Weighting(), 3, 100)
    assert loads.accumulation == 1
    assert [bool(float(loads[place].pack.weights.sum())) for place in range(3)] == [True, False, False]
