"""Generated ids as text and tokens: every character in exactly one token, alternatives in the same place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from selfrag.decoding.requests import Constraint as Mask
from selfrag.decoding.requests import Finish, Generated
from selfrag.intrinsics.contract import Constraint
from selfrag.intrinsics.execution.engine import label_ids, mask, tokens
from selfrag.tokenization import HFTextCodec

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
    ids = label_ids(CODEC, Constraint(json_schema=FAITHFUL), 128)
    assert len(set(ids)) == len(ids) <= 128
    text = {CODEC.decode([one]) for one in ids}
    assert {"f", "p", "t", '"'} <= text
    whole = {one for label in ("faithful", "partial", "true", "false") for one in CODEC.encode(label)}
    assert whole <= set(ids)
    assert label_ids(CODEC, Constraint(json_schema=FAITHFUL), 3) == ids[:3]
    assert label_ids(CODEC, Constraint(regex="a"), 10) == label_ids(CODEC, None, 10) == ()


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, None),
        (Constraint(regex="a+"), Mask.regex("a+")),
        (Constraint(choice=("a", "b")), Mask.choice(("a", "b"))),
        (Constraint(json_schema=FAITHFUL), Mask.json(FAITHFUL)),
    ],
)
def test_constraints_of_codecs_become_those_of_engines(given_, expected):
    assert mask(given_) == expected
