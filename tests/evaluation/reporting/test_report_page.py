"""The report: what it shows, and that nothing it is made from can become anything but text."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import reported
from structure import Structure

from retrieval.passage import Passage
from selfrag.decoding.trace import Trace
from selfrag.evaluation.comparison import Comparison, Row, Table
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.report import Case, CaseFile, Outcome, Report, parts, read_report, render

TAGS = """html head meta title style body a header h1 h2 h3 h4 p ul ol li span bdi nav main section div table caption
    thead tbody tr th td svg g text rect path fieldset legend label input article details summary pre strong img"""
ATTRIBUTES = """lang charset http-equiv content name class href id scope tabindex role aria-label aria-labelledby alt
    src width height x y d fill stroke stroke-width rx xmlns font-family font-size font-weight dir type checked"""
NOTHING = Comparison(None, (Table("f", "short", ("contains",), 1, (Row("s", {"contains": None}, {}, 0.1, 0),)),), None)


def outcome(system: str = "ours", share: float | None = 1.0, **changes: object) -> Outcome:
    scores = {"contains": None if share is None else (share, 1.0), "searches": (2.0, 1.0)}
    answer = {"text": "Paris.", "segments": (("Paris.", "d1"),), "read": ("d1",), "usage": {"searches": 2}}
    output = Output(**{key: changes.pop(key, value) for key, value in answer.items()})
    return replace(Outcome(system, output, None, scores, None), **changes)


def case(*outcomes: Outcome, text: str = "") -> Case:
    passages = (Passage(f"d1{text}", f"Text.{text}", f"Title{text}"),)
    gold = (f"gold{text}",)
    item = Item(f"q{text}", f"Ask{text}", True, passages, frozenset({f"d1{text}"}), gold, references=gold)
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
    for part in ("Average over 2 files", "long (long, 3 items)", "finetuned: 1 items failed and count as wrong",
                 "Question 0?", "gold: Paris", "Text of d1 <b>& so on</b>.", "no memory left",
                 "model.safetensors abcdefabcdef", "At the start: retrieve", "After candidate 0: retrieve",
                 "0.900",  # the likelihood of what the better passage led to
                 "Fully supported 0.80"):  # fmt: skip
        assert part in text, part
    pictures = [dict(attrs) for tag, attrs in usual.tags if tag == "img"]
    assert len(pictures) == 3
    assert re.search(r"contains of reflective 100\.0 .*; finetuned 50\.0 \[", str(pictures[1]["alt"]))


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


def test_what_is_not_at_hand_is_said() -> None:
    bare = Structure(parts().article(Case("q", None, (outcome(read=("d1", "d2")),)), "item"))
    assert "not at hand" in bare.text()
    assert "was shown: d1, d2" in bare.text()
    right, wrong = outcome("a"), outcome("b", 0.0, error="gone")
    for outcomes, kinds in (((right,), {"right"}), ((right, wrong), {"wrong", "differ", "failed"})):
        assert case(*outcomes).kinds == {"all", *kinds}
