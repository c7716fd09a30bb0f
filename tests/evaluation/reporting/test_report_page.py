"""The report: what it shows, and that nothing it is made from can become anything but text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise

import pytest
import reported
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structure import Structure

from retrieval.passage import Passage
from selfrag.decoding.trace import Trace
from selfrag.evaluation.comparison import Comparison, Row, Table
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.items import Item
from selfrag.evaluation.report import KINDS, MOST, Case, CaseFile, Outcome, Report, parts, read_report, render
from selfrag.pages import svg
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import ISREL

TAGS = """html head meta title style body a header h1 h2 h3 h4 p ul ol li span bdi nav main section div table caption
    thead tbody tr th td svg g text rect path fieldset legend label input article details summary pre strong img"""
ATTRIBUTES = """lang charset http-equiv content name class href id scope tabindex role aria-label aria-labelledby alt
    src width height x y d fill stroke stroke-width rx xmlns font-family font-size font-weight dir type checked"""
NOTHING = Comparison(None, (Table("f", "short", ("contains",), 1, (Row("s", {"contains": None}, {}, 0.1, 0),)),), None)


def outcome(system: str = "ours", share: float | None = 1.0, **changes: object) -> Outcome:
    scores = {"contains": None if share is None else (share, 1.0), "searches": (2.0, 1.0)}
    made = Outcome(system, "Paris.", None, (("Paris.", "d1"),), ("d1",), {"searches": 2}, scores, None)
    return replace(made, **changes)


def case(*outcomes: Outcome, text: str = "") -> Case:
    passages = (Passage(f"d1{text}", f"Text.{text}", f"Title{text}"),)
    item = Item(
        f"q{text}",
        f"Ask{text}",
        True,
        passages,
        frozenset({f"d1{text}"}),
        (f"gold{text}",),
        references=(f"gold{text}",),
    )
    return Case(f"q{text}", item, outcomes or (outcome(),))


def page(*cases: Case, text: str = "", **changes: object) -> Structure:
    report = Report(NOTHING, {f"s{text}": manifest(text)}, (CaseFile(f"file{text}", cases, 9, text or None),), 3)
    return Structure(render(replace(report, **changes)))


def manifest(text: str = "") -> dict[str, object]:
    file = {"settings": {"task": {"kind": f"short{text}"}, "items": 1, "rows": 2, "sha256": f"ab{text}", "limit": text}}
    about = {"commit": f"c{text}", "time": text, "versions": {f"v{text}": text}}
    identity = {"engine": text, "model": {f"model.safetensors{text}": text}, "system": {"kind": text}}
    return {"identity": identity, "about": about, "files": {f"file{text}": file}}


def check(found: Structure) -> None:
    found.check_inert(TAGS, ATTRIBUTES)
    assert not found.unseen()
    assert all(str(value).startswith("data:image/svg+xml;base64,") for value in found.values("src"))
    found.text().encode()


@pytest.fixture(scope="module")
def usual(runs) -> Structure:
    return Structure(render(read_report(runs, against="finetuned")))


def test_the_report_of_real_runs(usual) -> None:
    check(usual)
    text = usual.text()
    for part in (
        "Average over 2 files",
        "short (short, 8 items)",
        "long (long, 3 items)",
        "finetuned: 1 items failed and count as wrong",
        "Question 0?",
        "gold: Paris",
        "Text of d1 <b>& so on</b>.",
        "no memory left",
        "model.safetensors abcdefabcdef",
    ):
        assert part in text, part
    pictures = [dict(attrs) for tag, attrs in usual.tags if tag == "img"]
    assert len(pictures) == 3
    assert re.search(r"contains of reflective 100\.0 .*; finetuned 50\.0 \[", str(pictures[1]["alt"]))


def test_an_answer_unfolds_into_segments_search_and_tree(usual) -> None:
    text = usual.text()
    folded = [dict(attrs) for tag, attrs in usual.tags if tag == "details"]
    assert all("open" not in attrs for attrs in folded)
    assert sum(attrs.get("class") == "answer" for attrs in folded) == (reported.SHORT + reported.LONG) * 2
    assert usual.text("summary").count("the tree") == reported.SHORT + reported.LONG
    assert "At the start: retrieve" in text
    assert "After candidate 0: retrieve" in text
    assert "0.900" in text  # the likelihood of what the better passage led to
    assert "Fully supported 0.80" in text
    assert usual.text("strong").count("the answer") >= reported.SHORT + 2 * reported.LONG


def test_the_items_can_be_picked_out_without_a_script(usual) -> None:
    style = usual.text("style")
    radios = [dict(attrs) for tag, attrs in usual.tags if tag == "input"]
    assert [radio["id"] for radio in radios] == [f"show-{kind}" for kind in KINDS]
    assert sum("checked" in radio for radio in radios) == 1
    for kind in KINDS:
        assert f"body:has(#show-{kind}:checked) article:not(.is-{kind})" in style
    assert "items that failed (1)" in usual.text("label")


def test_kinds_of_items() -> None:
    right, wrong = outcome("a"), outcome("b", 0.0)
    assert case(right).kinds == {"all", "right"}
    assert case(right, wrong).kinds == {"all", "wrong", "differ"}
    assert case(wrong, outcome("c", 0.0)).kinds == {"all", "wrong"}
    assert case(outcome("a", None)).kinds == {"all"}
    assert case(outcome("a", 0.0, error="gone")).kinds == {"all", "wrong", "failed"}


def test_it_is_readable_by_ear(usual) -> None:
    tags = usual.tags
    assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)
    assert all(dict(attrs).get("scope") in ("row", "col") for tag, attrs in tags if tag == "th")
    assert sum(tag == "details" for tag, _ in tags) == sum(tag == "summary" for tag, _ in tags)
    assert all(dict(attrs).get("alt") for tag, attrs in tags if tag == "img")
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def hostile_page(text: str) -> Structure:
    made: Trace = reported.hostile(text)
    usage, scores = {f"u{text}": 3}, {f"m{text}": (1.0, 1.0)}
    traced = outcome(f"s{text}", text=text, trace=made, usage=usage, scores=scores)
    bare = outcome(f"t{text}", text=text, error=text, damage=text, segments=((text, text),), read=(text,))
    table = Table(f"f{text}", text, ("contains",), 1, (Row(f"s{text}", {"contains": None}, {}, None, 0),), (text,))
    return page(case(traced, bare, text=text), text=text, comparison=Comparison(None, (table,), None))


@pytest.mark.parametrize("name", sorted(reported.HOSTILE))
def test_hostile_text_is_text(name) -> None:
    check(hostile_page(reported.HOSTILE[name]))


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(text=st.text(st.sampled_from("<>&\"'/!-=;[]$\\_^{}abc \n\t\x00\u202e\ud83d#:") | st.characters(), min_size=1))
def test_no_text_becomes_mark_up(text) -> None:
    check(hostile_page(text[:40]))


@pytest.mark.parametrize("name", sorted(set(reported.HOSTILE) - {"huge"}))
def test_a_tree_alone_is_a_whole_picture(name) -> None:
    root = ElementTree.fromstring(svg(reported.hostile(reported.HOSTILE[name]), name="t"))
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "rect", "path", "g", "text"}
    assert {element.get("id") for element in root.iter() if element.get("id")} == {"t-1", *(f"t{i}" for i in range(6))}


def test_a_badge_says_how_sure_and_who() -> None:
    sure = parts().judged(Judgment(ISREL, "s", (0.9, 0.1), 0.99))
    assert Structure(sure).text() == "Relevant 0.90 Irrelevant 0.10"
    other = Structure(parts().judged(Judgment(ISREL, "s", (0.001, 0.999), 0.01, Source.JUDGE))).text()
    assert other == "Irrelevant 1.00 coverage 0.01 by judge"
    assert parts().judged(None) == "-"


def test_long_traces_are_cut_and_say_so() -> None:
    made = reported.trace()
    many = replace(made, decisions=made.decisions * MOST["steps"])
    left = len(many.decisions) - MOST["steps"]
    assert f"{left:,} more decisions" in parts().search(many, "x")
    assert parts().segments(replace(made, best=None), "x") == ""
    assert "<svg" not in parts().search(replace(made, nodes=(), decisions=(), best=None), "x")


def test_what_is_not_at_hand_is_said() -> None:
    bare = Structure(parts().article(Case("q", None, (outcome(read=("d1", "d2")),)), "item"))
    assert "not at hand" in bare.text()
    assert "was shown: d1, d2" in bare.text()
    asked = Case("q", None, (outcome(trace=reported.trace()),))
    assert asked.question == "Q"
    assert [passage.id for passage in asked.passages] == ["d1", "d2"]


def test_the_same_report_gives_the_same_page(runs) -> None:
    report = read_report(runs, items=1)
    assert render(report) == render(report)


def test_a_figure_without_interval_is_shown_and_drawn() -> None:
    alone = Estimate(0.5, float("nan"), float("nan"), 1)
    table = Table("f", "short", ("contains",), 1, (Row("s", {"contains": alone}, {}, 0.1, 0),))
    found = page(case(), comparison=Comparison(None, (table,), None))
    check(found)
    assert "nan" not in found.text().lower()
    assert len(found.values("src")) == 1


def test_the_candidates_of_a_closed_set_are_its_options() -> None:
    made = replace(reported.trace(), options=("Paris.", "Rome."))
    assert "At the start: options" in Structure(parts().search(made, "x")).text("caption")
