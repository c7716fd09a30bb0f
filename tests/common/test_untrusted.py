"""Text of others: what cannot be seen is replaced, what may open a control token is broken, in linear time."""

import json
import unicodedata

import control_tokens
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.common.untrusted import markers, printable, replace_surrogates, unmarked

HIDDEN = "\u2028\u2029\u200b\u200e\u200f\u061c\ufeff\u00ad\u2066\U000e0041\U000e0101"


def test_hidden_characters_are_replaced_but_scripts_that_need_joiners_and_emoji_survive_but_rows_of_them_do_not():
    assert [printable(f"a{character}b") for character in HIDDEN] == ["a\ufffdb"] * len(
        HIDDEN
    )
    for text in (
        "\u0645\u06cc\u200c\u062e",
        "\u0915\u094d\u200d\u0937",
        "\u2764\ufe0f",
        "tab\tand\nline",
    ):
        assert printable(text) == text
    assert (
        printable("a\ufe0f\ufe0f\ufe0fb\u200d\u200c\u200d")
        == "a\ufe0f\ufffd\ufffdb\u200d\ufffd\ufffd"
    )


@given(st.text(st.characters(codec=None)))
def test_no_text_makes_json_or_a_file_unencodable(text):
    for made in (replace_surrogates(text), printable(text), unmarked(text)):
        json.dumps(made, ensure_ascii=False).encode()


@pytest.mark.parametrize("token", control_tokens.HOSTILE)
@pytest.mark.parametrize("form", "{} x{}y {0}{0} [{}] <{}>".split())
def test_every_known_marker_is_broken_whatever_is_around_it(token, form):
    for written in (token, token.translate(control_tokens.WIDE), token.swapcase()):
        sent = unmarked(form.format(written))
        assert token.casefold() not in unicodedata.normalize("NFKC", sent).casefold()
        assert sent.replace(" ", "") == form.format(written).replace(" ", "")


def test_the_brackets_are_all_that_unicode_folds_into_them():
    for plain in "<[]|>":
        for code in range(0x110000):
            if plain in unicodedata.normalize("NFKD", chr(code)):
                wide = f"<|a|>{'>>x<<'}[y]".replace(plain, chr(code))
                assert unmarked(wide).count(" ") == unmarked("<|a|>>>x<<[y]").count(
                    " "
                ), hex(code)


def test_ordinary_text_and_own_wording_stay_and_a_bracket_that_is_not_closed_is_broken():
    for text in (
        "a < b > c",
        "See [1], [2, 3] and [4-6].",
        "<c0> One. <r12> Two.",
        '[{"r": 0}]',
        "a || b; x[0] = -1",
    ):
        assert unmarked(text) == text
    assert unmarked("a<|im_") == "a< |im_"
    assert unmarked("[IN") == "[ IN"
    own = "Judge as <guardian>: [yes/no]"
    assert markers(own) == {"<guardian>", "[yes/no]"}
    assert unmarked(f"{own} <s>", markers(own)) == f"{own} < s>"


@pytest.mark.parametrize(
    "unit",
    "<\n[\n|\n>\n<|\n[1\n~]\n|a\n\u200b>\n<c1\n\ufe0f\na\n[Document ".split("\n"),
)
@pytest.mark.parametrize("function", [unmarked, printable])
def test_the_time_is_linear(growth, function, unit):
    assert growth(lambda length: unit * (length // len(unit)), function, 2**17) < 8
