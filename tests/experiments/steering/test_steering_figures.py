"""Axes, fluency, reliance on memory, trends, Pareto fronts, choices: hand-computed cases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import passages

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.fluency import REPEATED, repeated_bigrams
from selfrag.evaluation.metrics.memory import FROM_MEMORY, UNCITED, UNSEEN
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.pareto import Point, front
from selfrag.experiments.steering.choosing import Goal, Limit, choose, halves
from selfrag.experiments.steering.plots import Panel, places_of, plot_axis, plot_pareto
from selfrag.experiments.steering.setting import Axis, plan
from selfrag.experiments.steering.trends import trends
from selfrag.reflection.weights import Weights


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("issup=0,0.5,1", (0, 0.5, 1)),
        ("threshold=0:0.3:0.1", (0.0, 0.1, 0.2, 0.3)),
        ("threshold=0.2,none", (0.2, None)),
        ("mode=always, never", ("always", "never")),
        ("no_retrieval_branch=true,false", (True, False)),
        ("+citations=0,1", (0, 1)),
    ],
)
def test_an_axis_is_read(text: str, values: tuple[Any, ...]) -> None:
    assert Axis.parse(text).values == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("issup", "write NAME=VALUE,VALUE or NAME=FIRST:LAST:STEP"),
        ("issup=", "write NAME=VALUE,VALUE"),
        ("sup=1", "axis 'sup': known are isrel, issup, isuse"),
        ("weights=1", "axis 'weights': known are"),
        ("max_segments=1,2", "axis 'max_segments': known are"),
        ("issup=1,1", "give at least one value, and each once"),
        ("threshold=0:1", "write the span as FIRST:LAST:STEP"),
        ("threshold=0:1:0", "a span of 0 values"),
        ("threshold=1:0:0.1", "a span of"),
        ("threshold=0:1:1e-9", "a span of 1000000001 values; give 1 to 1000"),
    ],
)
def test_a_bad_axis_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Axis.parse(text)


def test_each_axis_alone_or_every_combination() -> None:
    axes = (Axis.parse("issup=0,1"), Axis.parse("threshold=0.2,none"))
    alone = plan(Decoding(), axes)
    assert [one.name for one in alone.settings] == ["base", "issup=0", "threshold=none"]
    assert alone.series == {
        "issup": ((0, "issup=0"), (1, "base")),
        "threshold": ((0.2, "base"), (None, "threshold=none")),
    }
    assert alone.settings[1].decoding == Decoding(weights=Weights(issup=0))
    grid = plan(Decoding(), axes, grid=True)
    assert [one.name for one in grid.settings] == [
        "base",
        "issup=0,threshold=0.2",
        "issup=0,threshold=none",
        "issup=1,threshold=none",
    ]
    apart = plan(Decoding(), axes, merge=False)
    assert [one.name for one in apart.settings] == ["base", "issup=0", "issup=1", "threshold=0.2", "threshold=none"]
    joined = Decoding(reflectors=("citations",))
    assert plan(joined, (Axis.parse("+citations=2"),)).settings[1].decoding.weights.of("citations") == 2
    with pytest.raises(UserError, match="axis issup is given twice"):
        plan(Decoding(), (axes[0], axes[0]))
    with pytest.raises(UserError, match=r"threshold=1\.5"):
        plan(Decoding(), (Axis.parse("threshold=1.5"),))
    with pytest.raises(UserError, match="axis issup: 'high' is not a number"):
        plan(Decoding(), (Axis.parse("issup=high"),))


ITEM = Item("q", "Who?", True, passages("d1", "d2"), answers=("d1", "Ann", "Bob"), references=("Ann",), task="short_qa")


def test_fluency_of_a_sentence() -> None:
    assert repeated_bigrams("To be or not to be") == (1, 5)
    assert repeated_bigrams("x") == (0, 0)
    assert REPEATED.part(ITEM, Output("a b a b")) == (1.0, 3.0)
    assert REPEATED.part(ITEM, None) is None


@pytest.mark.parametrize(
    ("text", "memory", "unseen"),
    [
        ("It was d1.", (0.0, 1.0), (1.0, 1.0)),  # in a passage that was not read
        ("It was Ann.", (1.0, 1.0), (1.0, 1.0)),  # right, and in none
        ("Ann or d1", (0.0, 1.0), (1.0, 1.0)),  # one of the answers given stands in a passage
        ("Nobody", (0.0, 0.0), (0.0, 0.0)),  # wrong: does not count
    ],
)
def test_reliance_on_memory(text: str, memory: tuple[float, float], unseen: tuple[float, float]) -> None:
    said = Output(text, read=("d2",), retrieved=True)
    assert FROM_MEMORY.part(ITEM, said) == memory
    assert UNSEEN.part(ITEM, said) == unseen
    assert UNCITED.part(ITEM, said) == (memory[0], memory[0])
    assert UNCITED.part(ITEM, replace(said, cited=("d2",))) == (0.0, memory[0])
    assert FROM_MEMORY.part(replace(ITEM, answers=None), said) is None
    assert FROM_MEMORY.part(replace(ITEM, passages=()), said) is None
    assert FROM_MEMORY.part(ITEM, None) is None


def test_a_front_holds_what_nothing_beats() -> None:
    points = {"a": Point(10, 50), "b": Point(20, 60), "c": Point(20, 55), "d": Point(30, 60), "e": Point(10, 50)}
    assert front(points) == ["a", "e", "b"]


@given(st.dictionaries(st.text(max_size=3), st.builds(Point, st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_everything_off_the_front_is_beaten_by_something_on_it(points: dict[str, Point]) -> None:
    kept = front(points)
    assert kept
    for name, one in points.items():
        assert (name in kept) != any(points[other].beats(one) for other in kept)


def column(*values: float) -> list[tuple[float, float]]:
    return [(value, 1.0) for value in values]


def test_the_paper_s_trends_are_looked_for_between_the_ends() -> None:
    series = {
        "issup": ((1, "base"), (0, "issup=0"), (5, "issup=5")),
        "threshold": ((0.2, "base"),),
        "beam": ((1, "x"),),
    }
    settings = {
        "base": {"acc": column(1), "citation_precision": column(1)},
        "issup=0": {"citation_precision": column(*[0, 1] * 20), "words": column(*[3] * 40)},
        "issup=5": {"citation_precision": column(*[1] * 40), "words": column(*[4, 3] * 20)},
    }
    precision, words = trends(series, settings, "acc")
    assert (precision.low, precision.high) == (0, 5)
    assert precision.difference is not None
    assert precision.difference.value == 0.5
    assert precision.verdict == "as in the paper"
    assert words.verdict == "against the paper"
    same = {name: {"words": column(*[1, 2] * 9)} for name in ("issup=0", "issup=5")}
    (found,) = trends({"issup": ((0, "issup=0"), (5, "issup=5"))}, same, "acc")
    assert found.verdict == "not told apart"
    assert "falls" in str(found)
    nothing = {name: {"words": [None, None]} for name in ("issup=0", "issup=5")}
    (found,) = trends({"issup": ((0, "issup=0"), (5, "issup=5"))}, nothing, "acc")
    assert found.verdict == "undefined"
    assert str(found) == "issup 0 to 5: words is undefined; in the paper it falls"


def test_more_words_are_no_more_accuracy() -> None:
    """The headline of texts without a reference is their length: no trend of the paper, and nothing to choose by."""
    ends = {"threshold=0": {"words": column(9, 8)}, "threshold=1": {"words": column(3, 4)}}
    assert trends({"threshold": ((0, "threshold=0"), (1, "threshold=1"))}, ends, "words") == []
    assert not Goal("headline", ()).fits("words", ["words"])
    assert Goal("words", ()).fits("words", ["words"])
    assert Goal("headline", ()).fits("contains", ["contains"])
    with pytest.raises(UserError, match="no file has all these figures"):
        Goal("headline", ()).check({"bios": ("words", ("words",), 9)})


@pytest.mark.parametrize("text", ["headline,retrieval_rate<=0.4", "f1", "f1,words>=3,retrieval_rate<=0.5"])
def test_a_goal_is_read_back(text: str) -> None:
    assert str(Goal.parse(text)) == text


@pytest.mark.parametrize("text", ["", "f1,rate", "f1,rate<0.4", "f1,rate<=much", "f1,rate<=1e", "f 1"])
def test_a_bad_goal_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="write METRIC,METRIC<=NUMBER"):
        Goal.parse(text)


@given(st.integers(2, 60), st.integers(0, 9))
def test_halves_are_disjoint_and_hold_everything(items: int, seed: int) -> None:
    first, second = halves(items, seed)
    assert sorted((*first, *second)) == list(range(items))
    assert len(second) - len(first) in (0, 1)
    assert halves(items, seed) == (first, second)


def test_the_best_is_chosen_on_one_half_and_measured_on_the_other() -> None:
    first, second = halves(8)

    def both(here: float, there: float) -> list[tuple[float, float]]:
        return column(*[here if i in first else there for i in range(8)])

    settings = {
        "base": {"acc": both(0.5, 0.5), "rate": both(1.0, 1.0)},
        "dear": {"acc": both(1.0, 1.0), "rate": both(0.9, 0.9)},
        "lucky": {"acc": both(0.9, 0.25), "rate": both(0.4, 0.8)},
        "solid": {"acc": both(0.8, 0.75), "rate": both(0.2, 0.2)},
        "also": {"acc": both(0.9, 0.9), "rate": both(0.4, 0.4)},
    }
    found = choose(settings, Goal("headline", (Limit("rate", "<=", 0.4),)), "base", "acc")
    assert (found.name, found.candidates, found.chosen_at) == ("lucky", 3, 0.9)
    assert found.confirmed is not None
    assert found.gain is not None
    assert (found.confirmed.value, found.confirmed.n) == (0.25, len(second))
    assert found.gain.value == -0.25
    assert not found.kept  # 0.8 on the other half
    assert found.as_dict()["limits"]["rate<=0.4"]["value"] == pytest.approx(0.8)
    alone = choose(settings, Goal("acc", ()), "base", "acc")
    assert (alone.name, alone.kept) == ("dear", True)
    none = choose(settings, Goal("acc", (Limit("rate", "<=", 0.1),)), "base", "acc")
    assert (none.name, none.candidates) == (None, 0)
    with pytest.raises(UserError, match="no figure 'f1' here; there are acc, rate"):
        choose(settings, Goal("f1", ()), "base", "acc")
    with pytest.raises(UserError, match="1 items cannot be halved"):
        choose({"base": {"acc": column(1)}}, Goal("acc", ()), "base", "acc")


def test_pictures_are_drawn_and_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from selfrag.evaluation.intervals import Estimate

    curve = [(0.0, Estimate(0.1, 0.0, 0.2, 9)), (1.0, Estimate(0.5, math.nan, math.nan, 9))]
    panels = [Panel("percent", {"accuracy": curve, "none": []}), Panel("words", {"words": curve[:1]}, percent=False)]
    out = plot_axis("<b>file</b>", "issup", panels, tmp_path / "axis.svg", base=1.0)
    assert out is not None
    assert "&lt;b&gt;file" in out.read_text()
    assert plot_axis("x", "issup", panels[1:], tmp_path / "none.svg") is None
    points = {"base": Point(10, 50), "other": Point(20, 60)}
    assert plot_pareto("x", ("a", "b"), points, tmp_path / "front.png", marked={"base": "base", "gone": "x"})
    assert plot_pareto("x", ("a", "b"), {"base": Point(1, 1)}, tmp_path / "one.png", marked={}) is None


def test_values_that_lie_close_stand_at_equal_steps() -> None:
    assert places_of([0.5, 0, 1]) == {0: 0, 0.5: 0.5, 1: 1}
    assert places_of([0.999, 0, 1, 0.5]) == {0: 0, 0.5: 1, 0.999: 2, 1: 3}
    assert places_of([3]) == {3: 3}
    assert places_of([]) == {}
