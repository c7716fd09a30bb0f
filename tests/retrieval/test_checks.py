"""Checks of settings: what passes, and the one line that anything else gets."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.checks import choice, number, web_address, whole
from retrieval.errors import UserError

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300), st.binary(), st.lists(st.integers())
)


@pytest.mark.parametrize(
    ("value", "bounds", "said"),
    [
        (0, (1,), "n=0: give a whole number of at least 1"),
        (11, (0, 10), "n=11: give a whole number from 0 to 10"),
        (2.0, (1,), "n=2.0: give a whole number of at least 1"),
        (True, (0,), "n=True: give a whole number of at least 0"),
        ("3", (1,), "n='3': give a whole number of at least 1"),
        (None, (1,), "n=None: give a whole number of at least 1"),
    ],
)
def test_whole_numbers(value: object, bounds: tuple[int, ...], said: str) -> None:
    with pytest.raises(UserError) as caught:
        whole("n", value, *bounds)
    assert str(caught.value) == said
    for fits in (bounds[0], bounds[-1]):
        whole("n", fits, *bounds)


@pytest.mark.parametrize(
    ("value", "options", "said"),
    [
        (-0.1, {}, "x=-0.1: give a number of at least 0"),
        (0, {"above": True}, "x=0: give a number above 0"),
        (1.5, {"most": 1}, "x=1.5: give a number from 0 to 1"),
        (0.0, {"most": 1, "above": True}, "x=0.0: give a number above 0 and at most 1"),
        (math.nan, {}, "x=nan: give a number of at least 0"),
        (math.inf, {}, "x=inf: give a number of at least 0"),
        (False, {}, "x=False: give a number of at least 0"),
        ("0.5", {"most": 1}, "x='0.5': give a number from 0 to 1"),
    ],
)
def test_numbers(value: object, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        number("x", value, **options)
    assert str(caught.value) == said
    number("x", 1, **options)
    number("x", 0.5, **options)


def test_a_number_beyond_every_float_is_a_number() -> None:
    number("x", 10**400)
    with pytest.raises(UserError, match="from 0 to 1"):
        number("x", 10**400, most=1)


def test_choices() -> None:
    choice("mode", "add", ("add", "swap"))
    with pytest.raises(UserError, match=r"^mode='Add': choose one of add, swap$"):
        choice("mode", "Add", ("add", "swap"))
    with pytest.raises(UserError, match=r"^mode=\['add'\]: choose one of add, swap$"):
        choice("mode", ["add"], ("add", "swap"))


def test_web_addresses() -> None:
    assert web_address("https://example.org:8000/v1").port == 8000
    for bad in ("", "example.org", "ftp://x", "http://", "http://[::1", 3, None, b"http://x", ["http://x"]):
        with pytest.raises(UserError, match="is not a web address; give one like http://127"):
            web_address(bad)
    with pytest.raises(UserError, match=r"^url 'host' is not"):
        web_address("htps://user:secret@host")


@given(ANYTHING)
def test_whatever_is_refused_gets_one_short_line(value: object) -> None:
    said = []
    for check, bounds in ((whole, (1, 5)), (number, (0, 0.5)), (choice, (("a", "b"),))):
        try:
            check("setting", value, *bounds)
        except UserError as error:
            said.append(str(error))
    assert all(len(line) < 170 for line in said)
    assert len(said) >= 2  # no value is a whole number from 1 to 5, a number from 0 to 0.5 and a letter
