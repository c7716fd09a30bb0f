"""Weights: the paper's defaults and a canonical string that parses back to the same value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.errors import UserError
from selfrag.reflection.weights import Weights

numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**9), 10**9))
short = st.decimals(-999, 999, places=3).map(float)


def test_defaults_are_the_papers():
    assert str(Weights()) == "isrel=1,issup=1,isuse=0.5"
    assert Weights().vector == (1.0, 1.0, 0.5)


@given(st.builds(Weights, short, short, short))
def test_the_canonical_string_of_short_numbers_parses_back(weights):
    again = Weights.parse(str(weights))
    assert again == weights
    assert str(again) == str(weights)


@given(st.builds(Weights, numbers, numbers, numbers))
def test_the_canonical_string_parses_back(weights):
    again = Weights.parse(str(weights))
    assert again == weights
    assert str(again) == str(weights)


@pytest.mark.parametrize("text", ["", " ", ",", " isuse = 0.5 ,, isrel=1"])
def test_groups_left_out_keep_their_default(text):
    assert Weights.parse(text) == Weights()


@pytest.mark.parametrize(
    "text", ["isfun=1", "isrel", "isrel=", "isrel=a", "isrel=1,isrel=2", "isrel=nan", "isuse=inf", "=1"]
)
def test_nonsense_is_named(text):
    with pytest.raises(UserError, match="weight"):
        Weights.parse(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, True])
def test_only_finite_numbers(value):
    with pytest.raises(UserError, match=r"weight issup=.* is not a finite number"):
        Weights(issup=value)


def test_of_reads_by_role():
    weights = Weights(1, 2, 3)
    assert [weights.of(role) for role in ("isrel", "issup", "isuse")] == [1.0, 2.0, 3.0]
    joined = Weights(joined={"nli": 4})
    assert (joined.of("nli"), joined.of("other")) == (4.0, 1.0)
    assert joined.row(("issup", "nli", "other")) == (1.0, 4.0, 1.0)


def test_joined_reflectors_are_written_with_a_plus_in_the_order_of_their_names() -> None:
    weights = Weights(joined={"nli": 0.5, "citations": 2})
    assert str(weights) == "isrel=1,issup=1,isuse=0.5,+citations=2,+nli=0.5"
    assert Weights.parse(" +nli = 0.5 ,isrel=1, +citations=2") == weights
    assert weights.as_dict() == {"isrel": 1.0, "issup": 1.0, "isuse": 0.5, "joined": {"citations": 2, "nli": 0.5}}
    assert Weights().as_dict() == {"isrel": 1.0, "issup": 1.0, "isuse": 0.5}


@pytest.mark.parametrize("name", ["", "a b", "1a", "a=", "isrel", 3, None])
def test_names_of_joined_reflectors(name):
    with pytest.raises(UserError, match="no name of a joined reflector"):
        Weights(joined={name: 1.0})


@pytest.mark.parametrize("joined", [3, "nli", [1]])
def test_what_joins_is_a_mapping(joined):
    with pytest.raises(UserError, match="give names of joined reflectors"):
        Weights(joined=joined)


def test_numbers_are_the_shortest_that_parse_back():
    assert str(Weights(1e16, -2.0, 1e-9)) == "isrel=1e+16,issup=-2,isuse=1e-09"
    with pytest.raises(UserError, match="'1=2' is not a number"):
        Weights.parse("isrel=1=2")
