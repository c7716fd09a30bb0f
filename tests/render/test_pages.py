"""What all our pages share: text made inert, colours that can be read, a frame that nothing runs in."""

import re

from hypothesis import given
from hypothesis import strategies as st

from selfrag.common.untrusted import inert, printable
from selfrag.render.colours import COLOURS, DARK, LIGHT
from selfrag.render.documents import document, page_policy, picked_out, style_sheet


@given(text=st.text(max_size=60))
def test_what_can_be_seen_is_kept_as_it_is_and_the_rest_replaced_one_by_one(text):
    shown = printable(text)
    assert printable(shown) == shown
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        assert after in (before, "\ufffd")
    assert (
        printable("a\u202eb\x1bc\u200bd\ud83de\rf")
        == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf"
    )
    joined = "\u0645\u06cc\u200c\u062e\u0648\tx\r\ny"
    assert printable(joined) == joined
    assert inert("<\"'&>") == "&lt;&quot;&#x27;&amp;&gt;"


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_texts_have_enough_contrast():
    pairs = [
        (theme[text], theme[on])
        for theme in (LIGHT, DARK)
        for text in ("ink", "dim", "link")
        for on in ("page", "box")
    ]
    for colours in COLOURS.values():
        pairs += [colours.light, colours.dark, (colours.bar, "#000000")]
        assert (
            min(
                contrast(colours.bar, LIGHT["page"]),
                contrast(colours.bar, DARK["page"]),
            )
            >= 2.0
        )
    assert min(contrast(*pair) for pair in pairs) >= 4.5  # WCAG 2.2, level AA


def test_a_page_runs_nothing_and_fetches_nothing():
    plain = document("T <i>", style_sheet(), "<main></main>")
    pictured = document("T", style_sheet(), "", page_policy(pictures=True))
    policy = re.search('Content-Security-Policy" content="([^"]*)"', plain)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert "img-src" not in plain
    # parts of the file itself, and nothing from anywhere else
    assert "img-src data:" in pictured
    assert "<title>T &lt;i&gt;</title>" in plain
    rule = picked_out("show-x", "article:not(.is-x)")
    assert rule == "body:has(#show-x:checked) article:not(.is-x) { display: none }"
    assert style_sheet(rule).endswith(rule)
