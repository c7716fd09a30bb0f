"""The page: what it shows, and that nothing it is made from can become anything but text, in a real browser too."""

import re
from itertools import pairwise

import browsing
import inspected
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structure import Structure

from critic.inspect import MOST_PARTS, Inspection, Statistics, render
from selfrag.pages import LONGEST
from selfrag.training.rows import Row, Text, Token

TAGS = """html head meta title style body a header h1 h2 h3 p ul li span bdi nav main section div table caption
    thead tbody tr th td svg text rect figure figcaption fieldset legend label input article details summary pre
    strong"""
ATTRIBUTES = """lang charset http-equiv content name class href id scope tabindex role aria-label aria-labelledby
    viewbox width height x y text-anchor dir type checked"""


def inspection(rows, provenance=None, files=(("rows.jsonl", "0" * 64),)):
    statistics = Statistics()
    for row in rows:
        statistics.add(row)
    provenance = provenance or {}
    return Inspection(tuple(files), 7, statistics, tuple(rows), provenance, recorded=len(provenance))


def page(rows, provenance=None, **rest):
    return Structure(render(inspection(rows, provenance, **rest)))


@pytest.fixture(scope="module")
def usual():
    rows = [inspected.short(), inspected.unaided(), inspected.long()]
    return page(rows, {row.id: inspected.provenance(row) for row in rows[:1]})


def check_inert(found):
    found.check_inert(TAGS, ATTRIBUTES)


@pytest.mark.parametrize("name", sorted(inspected.HOSTILE))
def test_hostile_text_is_text(name):
    row = inspected.hostile(name)
    found = page([row], {row.id: inspected.provenance(row, inspected.HOSTILE[name])}, files=[(row.id, row.id)])
    check_inert(found)
    # The same rows with a harmless text have the same mark-up: no character of the text became any.
    harmless = Row("id", "source", "x", inspected.hostile(name).target)
    assert len(found.skeleton()) == len(page([harmless], {"id": inspected.provenance(harmless, "x")}).skeleton())
    assert not found.unseen()
    found.text().encode()


@settings(max_examples=30)  # two pages each
@given(
    text=st.text(st.sampled_from("<>&\"'/!-=;[]abc \n\t\x00\u202e\ud83d#:") | st.characters(), min_size=1, max_size=40)
)
def test_no_text_changes_the_structure(text):
    def made(value):
        row = Row("id" + value, "source" + value, "ask" + value, (*inspected.short().target[:3], Text("t" + value)))
        return page([row], {row.id: inspected.provenance(row, value)})

    found = made(text)
    check_inert(found)
    assert found.skeleton() == made("x").skeleton()


def test_huge_rows_are_cut_and_say_so():
    row = Row("big", "s", "a" * 1_000_000, (Token("[No Retrieval]"), *[Text("word ")] * 5_000, Token("[Utility:5]")))
    text = render(inspection([row]))
    assert len(text) < 80_000
    assert f"({1_000_000 - LONGEST:,} more characters)" in text
    assert f"{5_002 - MOST_PARTS:,} more parts" in text


def test_a_row_shows_its_tokens_text_folded_passages_and_provenance(usual):
    check_inert(usual)
    text = usual.text()
    said = ("[Continue to Use Evidence]", "Ann Example painted it.", "asqa-1", "weight 2", "Tell me about the ceiling.")
    assert [part for part in said if part not in text] == []
    folded = [attrs for tag, attrs in usual.tags if tag == "details" and ("class", "passage") in attrs]
    assert len(folded) == 3
    assert all("open" not in dict(attrs) for attrs in folded)
    assert "The ceiling was painted by Ann Example in 1720. It shows a hunt." in usual.text("div")
    assert usual.text("summary").count("why these tokens") == 1
    said = ("who painted the ceiling", "relevant and fully supported, best of 3", "Retrieval 0.75", "12.5", "a key of")
    assert [part for part in said if part not in text] == []


def test_provenance_of_another_making_is_tolerated():
    odd = {"isrel": {"label": ["x"], "p": {"x": 1}}, "score": "high"}
    segments = [1, None, "x", {}, {"candidates": [2, {}, odd], "retrieve": {"p": {"a": None}}}]
    for record in ({}, {"segments": None, "retrieve": 3, "isuse": [], "why": {"a": 1}}, {"segments": segments * 20}):
        found = page([row := inspected.short()], {row.id: record})
        check_inert(found)
        assert "why these tokens" in found.text("summary")


def test_it_is_readable_by_ear_and_by_keyboard(usual):
    tags = usual.tags
    assert ("html", (("lang", "en"),)) in tags
    assert all(dict(attrs).get("aria-label") for tag, attrs in tags if tag == "svg")
    assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)
    assert all(dict(attrs).get("scope") in ("row", "col") for tag, attrs in tags if tag == "th")
    assert sum(tag == "details" for tag, _ in tags) == sum(tag == "summary" for tag, _ in tags)
    assert sum(tag == "input" for tag, _ in tags) == sum(tag == "label" for tag, _ in tags)
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


browser = browsing.browser


def opened(browser, tmp_path, rows, provenance=None):
    file = tmp_path / "page.html"
    file.write_text(render(inspection(rows, provenance, files=[("rows", "0")])), encoding="utf-8")
    page, seen = browsing.opened(browser, file)
    return page, seen, file.as_uri()


def test_hostile_rows_do_nothing_in_a_browser(browser, tmp_path):
    rows = [inspected.hostile(name) for name in inspected.HOSTILE if name != "empty"]
    records = {row.id: inspected.provenance(row, row.instruction) for row in rows}
    page, seen, address = opened(browser, tmp_path, rows, records)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_timeout(300)
    assert seen == {"requests": [address], "dialogs": [], "errors": []}
    assert page.title() == "Training rows: rows"
    assert page.locator("article").count() == len(rows)
    assert page.locator("script, img, iframe, link, base, form, object, embed").count() == 0
    assert page.locator("h1").all_inner_texts() == ["Training rows"]
    assert page.url == address
