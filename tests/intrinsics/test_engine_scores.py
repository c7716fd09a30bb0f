"""Slots: exact probabilities along the trie of surfaces, equal to brute force over everything a model can write."""

import math

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from spelling import PROMPT, Pieces, brute_force, engine, renderer

from selfrag.decoding.requests import Failed, Finish, Generated
from selfrag.engines.base import serve
from selfrag.intrinsics.contract import Constraint, Message, Slot, State
from selfrag.intrinsics.execution.engine import label_ids, plan, tokens
from selfrag.tokenization import HFTextCodec

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


def test_what_failed_or_is_no_number_is_no_score():
    made, _, model = score(LETTERS, Slot(("a", "b"), SITE))
    [good] = serve(model, made.requests)
    assert isinstance(good, Generated)
    assert made.scores([Failed("no")]) is None
    good.watched[0, 0] = math.nan
    assert made.scores([good]) is None


CODECS = {
    "byte-level": HFTextCodec(tiny.byte_level_tokenizer(reflection=False)),
    "sentencepiece": HFTextCodec(tiny.sentencepiece_tokenizer(reflection=False)),
}
CODEC = CODECS["byte-level"]
FAITHFUL = {
    "type": "array",
    "items": {"properties": {"f": {"enum": ["faithful", "partial"]}, "ok": {"type": "boolean"}}},
}


def generated(ids, watch=(), others=()):
    """A result with the same alternatives at every position."""
    watched = (
        np.tile(np.array(others, dtype=np.float32), (len(ids), 1)) if watch else np.empty((len(ids), 0), np.float32)
    )
    return Generated(tuple(ids), (-0.25,) * len(ids), watched, Finish.EOS)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=60)
@given(text=st.text(st.characters(blacklist_categories=("Cs",)), max_size=30))
def test_tokens_spell_the_text(codec, text):
    ids = codec.encode(text)
    found = tokens(codec, ids, generated(ids), ())
    assert len(found) == len(ids)
    assert "".join(token.token for token in found) == codec.decode(ids)
    assert all(token.logprob == -0.25 and token.top == () for token in found)


def test_a_character_of_several_tokens_belongs_to_the_last():
    ids = CODEC.encode("a𝄞b")
    assert len(ids) == 6
    assert [token.token for token in tokens(CODEC, ids, generated(ids), ())] == ["a", "", "", "", "𝄞", "b"]


def test_bytes_that_never_become_a_character_end_after_four():
    (first,) = set(CODEC.encode("𝄞")[:1])
    found = [token.token for token in tokens(CODEC, [first] * 6, generated([first] * 6), ())]
    assert "\ufffd" in "".join(found)
    assert len(found) == 6


def test_alternatives_are_ranked_and_have_their_own_text():
    (yes,), (no,), (seven,) = (CODEC.encode(text) for text in ("y", "n", "7"))
    found = tokens(CODEC, [yes], generated([yes], (no, seven, yes), (-1.0, -math.inf, -0.25)), (no, seven, yes))
    assert found[0].top == (("y", -0.25), ("n", -1.0))


def test_labels_of_a_schema_are_watched_beginnings_first():
    ids = label_ids(CODEC, Constraint.json(FAITHFUL), 128)
    assert len(set(ids)) == len(ids) <= 128
    text = {CODEC.decode([one]) for one in ids}
    assert {"f", "p", "t", '"'} <= text
    whole = {one for label in ("faithful", "partial", "true", "false") for one in CODEC.encode(label)}
    assert whole <= set(ids)
    assert label_ids(CODEC, Constraint.json(FAITHFUL), 3) == ids[:3]
    assert label_ids(CODEC, Constraint.regex("a"), 10) == label_ids(CODEC, None, 10) == ()
