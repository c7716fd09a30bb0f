"""The plan of a run and its packs: every row once, all kinds in every stretch, each target predicted and weighed."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lettered import CLOSE, EOS, IDS, OPEN, PROMPTING, letters, passage, row
from refusals import refused

from selfrag.training.model import LossTally, measure
from selfrag.training.packing import pack, plan_epoch, weight_of
from selfrag.training.rows import TargetGroup, TargetLayout, TrainingExample
from selfrag.training.run import rate
from selfrag.training.scale import TrainingLoads
from selfrag.training.settings import TrainingConfig, Weighting

LAYOUT = TargetLayout(PROMPTING)
WEIGHTING = Weighting(
    text=1, retrieve=3, isrel=6, issup=5, isuse=2, marker=0.5, eos=4, text_length=8
)


def plan_steps(lengths, kinds, *, epoch, **settings):
    return plan_epoch(lengths, kinds, TrainingConfig(**settings), epoch)


def rows_in(steps):
    return [sorted(row for load in step for row in load) for step in steps]


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.sampled_from("abc")), min_size=1, max_size=60
    ),
    st.integers(1, 500),
    st.integers(1, 4),
)
def test_every_row_comes_once_within_the_budget_in_balanced_loads(
    rows, budget, workers
):
    lengths, kinds = zip(*rows, strict=True)
    steps = plan_steps(
        lengths, kinds, seed=1, epoch=0, step_tokens=budget, workers=workers
    )

    assert sorted(chain(*rows_in(steps))) == list(range(len(rows)))
    for step, members in zip(steps, rows_in(steps), strict=True):
        totals = [sum(lengths[row] for row in load) for load in step]
        assert sum(totals) <= budget or len(members) == 1
        assert 1 <= len(step) <= workers
        assert all(totals)
        if len(step) == workers:
            assert max(totals) - min(totals) <= max(lengths[row] for row in members)


def test_an_epoch_is_a_function_of_seed_and_number_with_all_kinds_in_every_stretch():
    def order(seed, epoch):
        return plan_steps(
            [10] * 50, ["a"] * 50, seed=seed, epoch=epoch, step_tokens=40, workers=2
        )

    assert order(1, 0) == order(1, 0)
    assert len({str(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    with refused("no training rows"):
        plan_steps([], [], seed=0, epoch=0, step_tokens=10, workers=1)
    kinds = ["common"] * 80 + ["rare"] * 20
    steps = plan_steps([10] * 100, kinds, seed=0, epoch=0, step_tokens=100, workers=2)
    for members in rows_in(steps):
        assert 1 <= sum(kinds[row] == "rare" for row in members) <= 3


def test_a_bound_on_loads_makes_more_of_them_and_changes_no_step():
    def plan(**bounds):
        return plan_steps(
            [100] * 12, ["a"] * 12, seed=1, epoch=0, step_tokens=400, **bounds
        )

    bounded = plan(workers=1, load_tokens=200)
    assert rows_in(bounded) == rows_in(plan(workers=1))
    assert all([*map(len, step)] == [2, 2] for step in bounded)
    # never fewer than workers
    assert all(len(step) == 4 for step in plan(workers=4, load_tokens=400))


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 120),
    st.integers(1, 9),
)
def test_processes_share_a_step_whole_and_evenly(sizes, processes, micro, rows_a_step):
    """All ids of a row are its number; the first token is the prompt."""
    examples = []
    for number, size in enumerate(sizes):
        ids, groups = (number,) * size, (int(TargetGroup.TEXT),) * size
        examples.append(TrainingExample(ids, (-100, *ids[1:]), groups))
    kinds, bounds = ["a"] * len(sizes), {"step_tokens": 1, "workers": 1}
    steps = plan_steps(sizes, kinds, seed=1, epoch=0, step_rows=rows_a_step, **bounds)
    assert {len(members) for members in rows_in(steps)[:-1]} <= {rows_a_step}
    assert sorted(chain(*rows_in(steps))) == list(range(len(sizes)))
    loads = TrainingLoads(examples, steps, Weighting(), processes, micro)

    assert len(loads) == len(steps) * processes * loads.accumulation
    for number, members in enumerate(rows_in(steps)):
        mine = [loads[number * loads.per_step + at] for at in range(loads.per_step)]
        weights = [float(load.pack.weights.sum()) for load in mine]
        counted = [
            set(load.pack.ids[0].tolist())
            for load, weight in zip(mine, weights, strict=True)
            if weight > 0
        ]
        assert sorted(i for ids in counted for i in ids) == members
        assert loads.tokens_of(number) == sum(sizes[row] for row in members)
        total = sum(weight_of(examples[row], Weighting()) for row in members)
        assert [load.total for load in mine] == pytest.approx([total] * len(mine))
        assert sum(weights) == pytest.approx(total, rel=1e-4)
        for load in mine:
            assert sum(load.pack.row_lengths) <= max(micro, max(sizes))


def test_two_rows_end_to_end():
    first = LAYOUT.example(row("[Retrieval]", passage("a"), "[Relevant]", "XY"))
    second = LAYOUT.example(
        row("[No Retrieval]", "ABCDEFGH", "[Utility:5]", weight=2.0)
    )
    load = pack([first, second], WEIGHTING)

    assert load.row_lengths == [11, 13]
    # a first token is not predicted from the row before
    alone = TrainingExample(ids=(5, 6), labels=(5, 6), groups=(0, 0))
    assert pack([alone, alone], WEIGHTING).predictors.tolist() == [0, 2]
    assert load.ids[0].tolist() == [*first.ids, *second.ids]
    assert load.positions[0].tolist() == [*range(11), *range(13)]
    assert load.targets.tolist() == [
        IDS["[Retrieval]"], OPEN, CLOSE, IDS["[Relevant]"], *letters("XY"), EOS,
        IDS["[No Retrieval]"], *letters("ABCDEFGH"), IDS["[Utility:5]"], EOS,
    ]  # fmt: skip
    assert load.predictors.tolist() == [1, 2, 5, 6, 7, 8, 9, *range(12, 23)]
    # two text tokens weigh sqrt(8 / 2) each, eight weigh 1 each; the second row counts twice
    assert load.weights.tolist() == pytest.approx(
        [3, 0.5, 0.5, 6, 2, 2, 4, 6, *[2] * 8, 4, 8]
    )


def test_tallies_add_up_by_group_and_label():
    load = pack(
        [LAYOUT.example(row("[Retrieval]", passage("a"), "[Relevant]", "X"))], WEIGHTING
    )
    losses = torch.arange(1.0, 7.0)
    hits = torch.tensor([True, False, True, False, True, True])
    tally = measure(load, losses, hits) + measure(load, losses, ~hits)

    marker = TargetGroup.MARKER
    assert tally.count[marker] == 4
    assert tally.losses[marker] == 10.0
    assert tally.hits[marker] == 2
    assert tally.label_count == {IDS["[Retrieval]"]: 2, IDS["[Relevant]"]: 2}
    assert tally.loss == pytest.approx(
        float((losses * load.weights).sum() / load.weights.sum())
    )
    assert LossTally().loss == 0.0


@pytest.mark.parametrize(
    "steps, decay, expected",
    [
        (10, "linear", [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        (6, "cosine", [0.5, 1.0, 1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
    ],
)
def test_the_rate_warms_up_and_decays(steps, decay, expected):
    config = TrainingConfig(warmup=2 / steps, decay=decay)
    factors = [rate(step, steps, config) for step in range(steps)]
    assert factors == pytest.approx(expected)
    assert rate(0, 1, config) == 1.0  # the warm-up takes at least one step
