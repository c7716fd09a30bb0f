"""Weights: the paper's defaults and a canonical string that parses back to the same value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.errors import UserError
from selfrag.reflection.weights import Weights

numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**9), 10**9))


@given(st.builds(Weights, numbers, numbers, numbers))
def test_the_canonical_string_parses_back(weights):
    again = Weights.parse(str(weights))
    assert again == weights
    assert str(again) == str(weights)


def test_groups_left_out_keep_their_default_and_nonsense_is_named():
    assert str(Weights(1e16, -2.0, 1e-9)) == "isrel=1e+16,issup=-2,isuse=1e-09"  # the shortest that parse back
    for text in ("", " ", ",", " isuse = 0.5 ,, isrel=1"):
        assert Weights.parse(text) == Weights()
    for text in ("isfun=1", "isrel", "isrel=", "isrel=1=2", "isrel=1,isrel=2", "isrel=nan", "isuse=inf", "=1"):
        with pytest.raises(UserError, match=r"weight|not a number"):
            Weights.parse(text)


def test_joined_reflectors_are_written_with_a_plus_in_the_order_of_their_names() -> None:
    weights = Weights(joined={"nli": 0.5, "citations": 2})
    assert str(weights) == "isrel=1,issup=1,isuse=0.5,+citations=2,+nli=0.5"
    assert Weights.parse(" +nli = 0.5 ,isrel=1, +citations=2") == weights
    assert weights.as_dict() == {"isrel": 1.0, "issup": 1.0, "isuse": 0.5, "joined": {"citations": 2, "nli": 0.5}}
    assert Weights().as_dict() == {"isrel": 1.0, "issup": 1.0, "isuse": 0.5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"issup": value}, r"weight issup=.* is not a finite number") for value in (math.nan, "1", True)),
        *(({"joined": {name: 1.0}}, "no name of a joined reflector") for name in ("", "a b", "isrel", 3)),
        *(({"joined": joined}, "give names of joined reflectors") for joined in (3, "nli")),
    ],
)
def test_what_is_no_weight_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        Weights(**given)
