"""Slots: exact probabilities along the trie of surfaces, equal to brute force over everything a model can write."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spelling import PROMPT, Pieces, brute_force, engine, renderer

from selfrag.decoding.requests import Failed, Generated
from selfrag.engines.base import serve
from selfrag.intrinsics.contract import Message, Slot, State
from selfrag.intrinsics.execution.engine import plan

SITE = State((Message("user", "Q?"),)).in_message("query", 0)
LETTERS = Pieces("a", "b", "c")
QUOTES = Pieces('"', "a", "n", '"a')


def score(codec, slot, *, seed=0, max_watch=128, context=PROMPT):
    made = plan(renderer(codec), slot, tuple(codec.encode(context)), adapter=None, most_watched=max_watch)
    model = engine(codec, seed, max_watch)
    return made, made.scores(serve(model, made.requests)), model


def prefix_free(texts):
    return not any(a != b and b.startswith(a) for a in texts for b in texts)


@settings(max_examples=40)
@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=5, unique=True).filter(prefix_free),
    st.integers(0, 1000),
)
def test_scores_are_those_of_brute_force(surfaces, seed):
    _, scores, model = score(LETTERS, Slot(tuple(surfaces), SITE), seed=seed)
    expected = brute_force(LETTERS, seed, LETTERS.encode(PROMPT), surfaces, 3)
    assert [math.exp(value) for value in scores] == pytest.approx(expected, rel=1e-4)
    assert all(request.max_tokens == 1 for request in model.requests)


def test_one_position_suffices_where_labels_are_tokens():
    made, scores, _ = score(LETTERS, Slot(("a", "b"), SITE, "c"))
    assert len(made.requests) == 1
    assert made.requests[0].prompt_ids == tuple(LETTERS.encode(PROMPT + "c"))
    assert sum(map(math.exp, scores)) < 1


def test_a_shared_beginning_is_walked_and_counted():
    made, scores, _ = score(LETTERS, Slot(("ab", "ac"), SITE))
    assert len(made.requests) == 2
    expected = brute_force(LETTERS, 0, LETTERS.encode(PROMPT), ("ab", "ac"), 2)
    assert [math.exp(value) for value in scores] == pytest.approx(expected, rel=1e-4)


def test_a_label_that_ends_where_another_goes_on_is_told_apart_by_its_end():
    """rel, relevant: with what follows the label neither begins the other."""
    codec = Pieces("rel", "evant", "ir", '"')
    surfaces = ('relevant"', 'irrelevant"', 'rel"')
    _, scores, _ = score(codec, Slot(surfaces, SITE), seed=3)
    expected = brute_force(codec, 3, codec.encode(PROMPT), surfaces, 4)
    assert [math.exp(value) for value in scores] == pytest.approx(expected, rel=1e-4)


def test_a_token_across_the_seam_counts_with_both_spellings():
    """The quote merged with the label: `"a` as one token, or `"` and `a`; the right value has both."""
    slot = Slot(("a", "n"), SITE, '"')
    made, scores, _ = score(QUOTES, slot)
    assert sorted(made.paths) == sorted([(5,), (2, 3), (2, 4)])
    expected = brute_force(QUOTES, 0, QUOTES.encode(PROMPT), ('"a', '"n'), 3)
    assert [math.exp(value) for value in scores] == pytest.approx(expected, rel=1e-4)


def test_few_watched_ids_make_more_requests_and_the_same_scores():
    slot = Slot(("a", "b", "c"), SITE)
    few, narrow, _ = score(LETTERS, slot, max_watch=2)
    one, wide, _ = score(LETTERS, slot)
    assert (len(few.requests), len(one.requests)) == (2, 1)
    assert narrow == pytest.approx(wide)


def test_the_adapter_is_asked():
    made = plan(renderer(LETTERS), Slot(("a", "bc"), SITE), (1,), adapter="uq", most_watched=128)
    assert {request.adapter for request in made.requests} == {"uq"}


def test_what_failed_or_is_no_number_is_no_score():
    made, _, model = score(LETTERS, Slot(("a", "b"), SITE))
    [good] = serve(model, made.requests)
    assert isinstance(good, Generated)
    assert made.scores([Failed("no")]) is None
    good.watched[0, 0] = math.nan
    assert made.scores([good]) is None


def test_a_surface_without_probability_is_minus_infinity():
    made, _, model = score(LETTERS, Slot(("a", "b"), SITE))
    [good] = serve(model, made.requests)
    good.watched[0, 0] = -math.inf
    assert made.scores([good])[0] == -math.inf
