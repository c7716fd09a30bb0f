"""Packs: which hidden state predicts which target, and what each target weighs."""

import pytest
from lettered import CLOSE, EOS, IDS, OPEN, PROMPTING, letters, passage, row

from selfrag.training.loss import Tally, measure
from selfrag.training.packing import apart, pack
from selfrag.training.rows import Example, Group, TargetLayout
from selfrag.training.settings import Weighting

LAYOUT = TargetLayout(PROMPTING)
WEIGHTING = Weighting(text=1, retrieve=3, isrel=6, issup=5, isuse=2, marker=0.5, eos=4, text_length=8)


def test_two_rows_end_to_end():
    first = LAYOUT.example(row("[Retrieval]", passage("a"), "[Relevant]", "XY"))
    second = LAYOUT.example(row("[No Retrieval]", "ABCDEFGH", "[Utility:5]", weight=2.0))
    load = pack([first, second], WEIGHTING)

    assert load.row_lengths == [11, 13]
    assert load.ids[0].tolist() == [*first.ids, *second.ids]
    assert load.positions[0].tolist() == [*range(11), *range(13)]
    assert load.targets.tolist() == [
        IDS["[Retrieval]"], OPEN, CLOSE, IDS["[Relevant]"], *letters("XY"), EOS,
        IDS["[No Retrieval]"], *letters("ABCDEFGH"), IDS["[Utility:5]"], EOS,
    ]  # fmt: skip
    assert load.predictors.tolist() == [1, 2, 5, 6, 7, 8, 9, *range(12, 23)]
    assert load.ids[0, load.predictors + 1].tolist() == load.targets.tolist()
    # two text tokens weigh sqrt(8 / 2) each, eight weigh 1 each; the second row counts twice
    assert load.weights.tolist() == pytest.approx([3, 0.5, 0.5, 6, 2, 2, 4, 6, *[2] * 8, 4, 8])


def test_the_rows_of_a_pack_come_apart_as_they_went_in():
    import torch

    rows = [LAYOUT.example(row("[Retrieval]", passage("a"), "[Relevant]", "XY")), LAYOUT.example(row("[Utility:5]"))]
    silent = Example(ids=(5, 6, 7), labels=(-100,) * 3, groups=(0, 0, 0))
    found = apart(pack([rows[0], silent, rows[1]], WEIGHTING))
    assert len(found) == 2
    for one, alone in zip(found, (pack([one], WEIGHTING) for one in rows), strict=True):
        assert one.row_lengths == alone.row_lengths
        for name in ("ids", "positions", "predictors", "targets", "groups", "weights"):
            torch.testing.assert_close(getattr(one, name), getattr(alone, name))


def test_a_first_token_is_never_predicted_from_the_row_before():
    alone = Example(ids=(5, 6), labels=(5, 6), groups=(0, 0))
    load = pack([alone, alone], WEIGHTING)
    assert load.predictors.tolist() == [0, 2]


def test_tallies_add_up_by_group_and_label():
    import torch

    load = pack([LAYOUT.example(row("[Retrieval]", passage("a"), "[Relevant]", "X"))], WEIGHTING)
    losses = torch.arange(1.0, 7.0)
    hits = torch.tensor([True, False, True, False, True, True])
    tally = measure(load, losses, hits) + measure(load, losses, ~hits)

    assert tally.count[Group.MARKER] == 4
    assert tally.losses[Group.MARKER] == 10.0
    assert tally.hits[Group.MARKER] == 2
    assert tally.label_count == {IDS["[Retrieval]"]: 2, IDS["[Relevant]"]: 2}
    assert tally.loss == pytest.approx(float((losses * load.weights).sum() / load.weights.sum()))
    assert Tally().loss == 0.0
