"""Metrics by name: names parse back, plug-ins join, nothing is NaN, and the page on metrics names and runs them all."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics import registry
from selfrag.evaluation.metrics.registry import (
    JUDGED,
    METRICS,
    PARAMETRIC,
    Metric,
    get_metric,
    metrics,
    ratio,
)

PASSAGES = (Passage("p1", "Ann wrote it.", "Ann"), Passage("p2", "It rained.", ""))
ITEMS = (
    Item("short", "who?", True, PASSAGES, gold=frozenset({"p1"}), answers=("Ann",), references=("Ann",)),
    Item("several", "which?", True, PASSAGES, gold=frozenset(), answer_sets=(("a", "b"), ("c",))),
    Item("closed", "Choose.", None, label="B", options=("x", "y")),
    Item("long", "why?", True, answerable=True, references=("the cat sat", "a dog")),
    Item("bare", "Write.", False),
)
PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["accurracy"], r"unknown metric 'accurracy'; did you mean accuracy\? All are in docs/"),
        (["retrieval_recall@K"], "unknown metric 'retrieval_recall@K'"),
        (["retrieval_recall@"], "unknown metric"),
        (["retrieval_recall@0"], "at least 1, such as retrieval_recall@5"),
        (["f1", "f1"], "f1 is named twice"),
        ([], "no metric"),
        *(([name], f"metric {name} needs .*; compute it on the finished run: selfrag eval") for name in JUDGED),
    ],
)
def test_errors_name_what_is_known(names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        metrics(names)


def test_a_broken_package_of_metrics_and_a_name_given_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("gone", "no_such_metrics", group)])
    registry.known.cache_clear()
    with pytest.raises(UserError, match=r"metrics no_such_metrics of another package cannot be loaded: .*No module"):
        get_metric("contains")
    with pytest.raises(ValueError, match="there is a metric contains already"):
        registry.metric("contains")(lambda item, output: 1.0)


def test_no_metric_returns_nan_in_silence() -> None:
    broken = Metric("broken", lambda item, output: (math.nan, 1.0))
    with pytest.raises(ValueError, match="broken of item 'short' is"):
        broken.part(ITEMS[0], Output("x"))
    assert ratio([None, (0.0, 0.0)]) is None
    assert ratio([]) is None


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


def test_every_metric_is_on_the_page_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "metrics"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in (*METRICS, *PARAMETRIC, *JUDGED) if name not in shown] == []
    assert [name for name in (*METRICS, *PARAMETRIC, *JUDGED) if f"`{name}`" not in PAGE] == []
