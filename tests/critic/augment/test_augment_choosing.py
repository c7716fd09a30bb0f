"""The choice of a passage: the paper's rules on hand-worked candidates, and draws that are seeded and among members."""

from __future__ import annotations

import random

import pytest
from scripted_critic import judgment, passages

from critic.augment.algorithm import Candidate, choose, ranked
from critic.cases import Case
from retrieval.passage import Passage

FULLY, PARTLY, NONE = "Fully supported", "Partially supported", "No support / Contradictory"


def candidates(*labels: tuple[str, str | None]) -> list[Candidate]:
    return [
        Candidate(passage, isrel=judgment(Case("IsRel", "x"), rel), issup=judgment(Case("IsSup", "x"), sup))
        for passage, (rel, sup) in zip(passages(*"abcdefghij"), labels, strict=False)
    ]


R, I = "Relevant", "Irrelevant"  # noqa: E741 - two columns of a table


@pytest.mark.parametrize(
    ("labels", "graded", "paper"),
    [
        ([(R, PARTLY), (R, FULLY), (R, FULLY)], 1, 0),
        ([(R, NONE), (R, PARTLY), (I, FULLY)], 1, 1),
        ([(I, FULLY), (R, FULLY)], 1, 1),
        ([(R, None), (R, PARTLY)], 1, 1),
        ([(None, FULLY), (R, FULLY)], 1, 1),
    ],
)
def test_supported_passages_by_label_then_rank(labels, graded, paper) -> None:
    rng = random.Random(0)
    assert choose(candidates(*labels), "graded", "random", rng)[0] == graded
    assert choose(candidates(*labels), "paper", "random", rng)[0] == paper


def test_the_rank_is_the_retrieval_score_whatever_the_order() -> None:
    found = [Candidate(Passage("low", "l", score=0.1)), Candidate(Passage("high", "h", score=0.9))]
    assert [c.passage.id for c in ranked([], found)] == ["high", "low"]
    tied = [Candidate(Passage(name, name, score=0.5)) for name in "cab"]
    assert [c.passage.id for c in ranked([], tied)] == ["c", "a", "b"]
    unscored = [Candidate(Passage("b", "b")), Candidate(Passage("a", "a", score=3.0))]
    assert [c.passage.id for c in ranked([], unscored)] == ["b", "a"]


def test_defect_32_an_unsupported_passage_is_drawn_from_the_members() -> None:
    labels = [(R, None)] * 6 + [(I, None), (R, None), (I, None), (I, None)]
    drawn = [choose(candidates(*labels), "graded", "random", random.Random(n))[0] for n in range(60)]
    assert set(drawn) == {6, 8, 9}


def test_defect_33_the_draw_is_seeded() -> None:
    labels = [(I, None)] * 5
    first = [choose(candidates(*labels), "graded", "random", random.Random(f"7/{n}"))[0] for n in range(30)]
    again = [choose(candidates(*labels), "graded", "random", random.Random(f"7/{n}"))[0] for n in range(30)]
    assert first == again
    assert len(set(first)) > 1


def test_unsupported_best_and_drop() -> None:
    labels = [(R, None), (R, NONE), (I, None)]
    assert choose(candidates(*labels), "graded", "best", random.Random(0))[0] == 1
    assert choose(candidates(*labels), "graded", "drop", random.Random(0)) == (
        None,
        "no passage is relevant and supports it",
    )


def test_without_any_judgment_there_is_no_choice() -> None:
    assert choose(candidates((None, None), (R, None)), "graded", "random", random.Random(0)) == (
        None,
        "no passage could be judged",
    )
