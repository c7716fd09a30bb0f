"""What all our pages share: text made inert, colours that can be read, a frame that nothing runs in."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.pages import COLOURS, DARK, LIGHT, document, inert, picked_out, style_sheet, visible


@given(text=st.text(max_size=60))
def test_what_can_be_seen_is_kept_as_it_is(text):
    shown = visible(text)
    assert visible(shown) == shown
    assert "".join(c for c in text.replace("\r\n", "\n") if c in shown or c == "\n") in (
        shown,
        re.sub(r"\u27e8U\+[0-9A-F]{4,6}\u27e9", "", shown),
    )


def test_what_cannot_be_seen_is_shown_by_its_code():
    assert visible("a\u202eb\x1bc\u200bd\ud83de") == "a⟨U+202E⟩b⟨U+001B⟩c⟨U+200B⟩d⟨U+D83D⟩e"
    assert visible(joined := "\u0645\u06cc\u200c\u062e\u0648\tx\ny") == joined
    assert inert("<\"'&>") == "&lt;&quot;&#x27;&amp;&gt;"


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("token", COLOURS)
def test_tokens_have_enough_contrast(token):
    colours = COLOURS[token]
    assert contrast(*colours.light) >= 4.5  # WCAG 2.2, level AA
    assert contrast(*colours.dark) >= 4.5
    assert contrast(colours.bar, "#000000") >= 4.5
    assert min(contrast(colours.bar, LIGHT["page"]), contrast(colours.bar, DARK["page"])) >= 2.0


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_have_enough_contrast(theme):
    for text in ("ink", "dim", "link"):
        for ground in ("page", "box"):
            assert contrast(theme[text], theme[ground]) >= 4.5


def test_a_page_runs_nothing_and_fetches_nothing():
    plain, pictured = document("T <i>", style_sheet(), "<main></main>"), document("T", style_sheet(), "", pictures=True)
    policy = re.search('Content-Security-Policy" content="([^"]*)"', plain)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert "img-src" not in plain
    assert "img-src data:" in pictured  # parts of the file itself, and nothing from anywhere else
    assert "<title>T &lt;i&gt;</title>" in plain


def test_own_rules_come_last():
    rule = picked_out("show-x", "article:not(.is-x)")
    assert rule == "body:has(#show-x:checked) article:not(.is-x) { display: none }"
    assert style_sheet(rule).endswith(rule)
