"""Metrics by name: each name parses back, unknown ones name the known, and nothing of them is NaN."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.intervals import mean
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.alce import alce, longbench
from selfrag.evaluation.metrics.citations import pair_figures
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import JUDGED, METRICS, get_metric, is_count, metrics, ratio

PASSAGES = (Passage("p1", "Ann wrote it.", "Ann"), Passage("p2", "It rained.", ""))
ITEMS = (
    Item("short", "who?", True, PASSAGES, gold=frozenset({"p1"}), answers=("Ann",), references=("Ann",)),
    Item("several", "which?", True, PASSAGES, gold=frozenset(), answer_sets=(("a", "b"), ("c",))),
    Item("closed", "Choose.", None, label="B", options=("x", "y")),
    Item("long", "why?", True, answerable=True, references=("the cat sat", "a dog")),
    Item("bare", "Write.", False),
)


def test_names_are_canonical() -> None:
    names = [*METRICS, "retrieval_recall@5", "retrieval_ndcg@10"]
    assert [one.name for one in metrics(names)] == names
    assert len(METRICS) > 25


def test_errors_name_what_is_known() -> None:
    with pytest.raises(UserError, match=r"unknown metric 'accurracy'; did you mean accuracy\? All are in docs/"):
        get_metric("accurracy")
    with pytest.raises(UserError, match=r"unknown metric 'retrieval_recall@K'"):
        get_metric("retrieval_recall@K")
    for name in JUDGED:
        with pytest.raises(UserError, match=f"metric {name} needs .*; compute it on the finished run: selfrag eval"):
            get_metric(name)
    with pytest.raises(UserError, match="at least 1, such as retrieval_recall@5"):
        get_metric("retrieval_recall@0")
    with pytest.raises(UserError, match="f1 is named twice"):
        metrics(["f1", "f1"])
    with pytest.raises(UserError, match="no metric"):
        metrics([])
    with pytest.raises(UserError, match="unknown metric"):
        get_metric("retrieval_recall@")


def test_counts_are_told_from_shares() -> None:
    assert [name for name in METRICS if is_count(name)] == [
        "list_length",
        "prompt_tokens",
        "generated_tokens",
        "requests",
        "searches",
        "words",
    ]
    assert is_count("facts (sentences, true)")
    assert not is_count("citation_recall_nli (true)")
    assert not is_count("no metric")


def test_retrieval_metrics_read_what_the_model_was_shown() -> None:
    item = Item("q", "who?", True, gold=frozenset({"b", "z"}))
    output = Output("x", read=("a", "b"), retrieved=True)
    assert get_metric("retrieval_recall@1").part(item, output) == (0.0, 1.0)
    assert get_metric("retrieval_recall@2").part(item, output) == (0.5, 1.0)
    ideal = 1 + 1 / math.log2(3)
    assert get_metric("retrieval_ndcg@2").part(item, output) == pytest.approx((1 / math.log2(3) / ideal, 1.0))
    assert get_metric("retrieval_ndcg@2").part(item, Output("x")) == (0.0, 1.0)
    assert get_metric("retrieval_recall@2").part(ITEMS[1], output) is None


def test_citation_f1_is_a_mean_over_questions() -> None:
    item = Item("q", "who?", True, PASSAGES, gold=frozenset({"p1", "p2"}))
    outputs = [Output("Ann", cited=("p1", "p9")), Output("Ann", cited=("p1", "p2")), Output("Ann")]
    # P, R = 1/2, 1/2; then 1, 1; then nothing is cited: the mean F is not the F of the means.
    assert ratio([get_metric("citation_f1").part(item, one) for one in outputs]) == pytest.approx((0.5 + 1 + 0) / 3)


texts = st.text(alphabet="abcAB .,[]12\n\x1b\ud800", max_size=20)


@given(texts, st.lists(st.sampled_from(["p1", "p2", "p9"]), unique=True, max_size=3))
def test_no_metric_raises_or_leaves_its_range_for_what_a_model_writes(text: str, cited: list[str]) -> None:
    output = Output(text, tuple(cited), tuple(cited), bool(cited), ((text, cited[0] if cited else None),))
    for item in ITEMS:
        for one in METRICS.values():
            part = one.part(item, output)
            assert part is None or (math.isfinite(part[0]) and math.isfinite(part[1]))
            assert part is None or one.unit == "count" or 0 <= part[0] <= max(part[1], 0)
            one.part(item, None)


def test_figures_without_items_are_shown_as_a_dash_and_written_as_none() -> None:
    nothing = [
        mean([]),
        alce([], lambda pairs: []).recall,
        longbench([], [])[0].precision,
        pair_figures([], []).f1,
    ]
    for one in nothing:
        assert not one.defined
        assert str(one) == "\N{EN DASH} n=0"
        assert one.as_dict()["value"] is None
    assert alce([], lambda pairs: []).f1 is None
    assert longbench([], [])[0].f1 is None
    assert str(mean([1.0])) == "1.000 n=1"
    assert mean([0.0, 1.0]).defined


def test_an_output_is_read_back_from_its_record() -> None:
    output = Output("Ann.", ("p1",), ("p1", "p2"), True, (("Ann.", "p1"), (" So.", None)), {"requests": 2})
    record = {"id": "q", "error": None, "scores": {}, **output.as_dict()}
    record["segments"] = [list(one) for one in record["segments"]]  # as JSON has it
    assert Output.from_record(record) == output
    assert Output.from_record({"id": "q", "error": "no memory", "scores": {}}) is None
    for damage in ({"segments": [1]}, {"usage": None}, {"cited": 3}):
        with pytest.raises(UserError, match="item 'q' is no record of an answer"):
            Output.from_record(record | damage)
