"""The page in a real browser: Chromium without a head, driven by playwright, where both are installed."""

import browsing
import inspected

from critic.inspect import Inspection, Statistics, render

browser = browsing.browser


def opened(browser, tmp_path, rows, provenance=None, **context):
    statistics = Statistics()
    for row in rows:
        statistics.add(row)
    provenance = provenance or {}
    file = tmp_path / "page.html"
    inspection = Inspection((("rows", "0"),), 0, statistics, tuple(rows), provenance, recorded=len(provenance))
    file.write_text(render(inspection), encoding="utf-8")
    page, seen = browsing.opened(browser, file, **context)
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


def test_the_policy_stops_a_script_even_where_mark_up_got_through(browser, tmp_path):
    """The second line of defence: the same page with a script put into it by hand."""
    _, _, address = opened(browser, tmp_path, [inspected.short()])
    file = tmp_path / "page.html"
    spoiled = file.read_text(encoding="utf-8").replace("<main>", f"<main>{inspected.SCRIPT}")
    file.write_text(spoiled, encoding="utf-8")
    page = browser.new_page()
    page.goto(address)
    page.wait_for_timeout(300)
    assert page.locator("script").count() == 1
    assert page.title() == "Training rows: rows"


def test_a_keyboard_is_enough(browser, tmp_path):
    page, _, address = opened(browser, tmp_path, [inspected.short(), inspected.unaided(), inspected.long()])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the rows"
    page.keyboard.press("Enter")
    assert page.url == f"{address}#rows"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "show-all"
    for _ in range(20):  # arrows walk through the choices
        page.keyboard.press("ArrowDown")
        if page.evaluate("document.activeElement.id") == "show-irrelevant":
            break
    visible = [article.get_attribute("id") for article in page.locator("article").all() if article.is_visible()]
    assert visible == ["row-3"]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    passage = page.locator("#row-3 details.passage").first
    assert not passage.locator(".body").is_visible()
    page.keyboard.press("Enter")
    assert passage.locator(".body").is_visible()
    page.keyboard.press("Space")
    assert not passage.locator(".body").is_visible()


def test_it_follows_the_readers_colours_and_fits_a_phone(browser, tmp_path):
    rows = [inspected.long(), inspected.hostile("unbroken"), inspected.hostile("marks")]
    grounds = {}
    for scheme in ("light", "dark"):
        page, _, _ = opened(browser, tmp_path, rows, color_scheme=scheme, viewport={"width": 360, "height": 640})
        grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        token = "getComputedStyle(document.querySelector('article .token')).backgroundColor"
        grounds[f"{scheme} token"] = page.evaluate(token)
    assert len(set(grounds.values())) == 4
