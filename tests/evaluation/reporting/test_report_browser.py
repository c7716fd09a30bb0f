"""The report in a real browser, opened from disk: nothing is asked for, and an answer unfolds into its trace."""

from __future__ import annotations

import browsing
import pytest

from selfrag.evaluation.report import read_report, render, write

browser = browsing.browser


@pytest.fixture
def shown(browser, runs, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(render(read_report(runs, against="finetuned")), encoding="utf-8")
    return *browsing.opened(browser, file, viewport={"width": 400, "height": 700}), file.as_uri()


def test_it_asks_for_nothing_and_unfolds(shown) -> None:
    page, seen, address = shown
    own = [url for url in seen["requests"] if not url.startswith("data:image/svg+xml")]
    assert own == [address]
    assert seen["dialogs"] == seen["errors"] == []
    moved = page.evaluate("""() => {
        const box = document.querySelector('.results .scroll'), name = box.querySelector('tbody th')
        const before = name.getBoundingClientRect().left
        box.scrollLeft = 200
        return [box.scrollLeft, name.getBoundingClientRect().left - before]
    }""")
    assert moved[0] > 100  # a wide table scrolls, and the names of the systems stay
    assert abs(moved[1]) < 1
    drawn = page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth > 100)")
    assert drawn == [True] * 3
    answer = page.locator("#item-0-0-0")
    segment = answer.locator("table").first
    assert not segment.is_visible()
    answer.locator("summary").first.click()
    assert segment.is_visible()
    tree = answer.locator("svg").first
    assert not tree.is_visible()
    answer.locator("summary", has_text="the search").click()
    assert answer.get_by_text("At the start: retrieve").is_visible()
    answer.locator("summary", has_text="the tree").click()
    assert tree.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_traced_answer_leads_to_its_sliders(browser, runs, tmp_path) -> None:
    report = read_report(runs, against="finetuned")
    write(report, tmp_path / "a report.html")
    page, seen = browsing.opened(browser, tmp_path / "a report.html")
    answer = page.locator("#item-0-0-0")
    answer.locator("summary").first.click()
    answer.get_by_role("link", name="rank it again under other weights").click()
    page.wait_for_selector("#view:not([hidden])")
    first = report.files[0].cases[0]
    assert page.locator("#asked").inner_text() == first.question
    assert first.outcomes[0].output.text in page.locator("#answer").inner_text()
    page.evaluate("location.hash = 'item-0-1-0'")
    page.get_by_text(report.files[0].cases[1].question).first.wait_for()
    page.evaluate("location.hash = '__proto__'")
    page.get_by_text("this page holds no such answer").wait_for()
    assert seen["errors"] == []
