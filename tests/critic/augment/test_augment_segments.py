"""Segments: whatever the text and whatever the sentence finder says, nothing is lost and nothing is blank."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from critic.augment.algorithm import segments

text = st.text(st.sampled_from("ab .\n\t\u3000é😀"), max_size=60)


@given(text=text, cuts=st.lists(st.integers(0, 60), max_size=8), shortest=st.integers(0, 9))
def test_segments_joined_are_the_text(text: str, cuts: list[int], shortest: int) -> None:
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    spans = segments(text, pairwise(at), shortest)
    pieces = [text[start:end] for start, end in spans]
    assert "".join(pieces) == (text if text.strip() else "")
    assert all(piece.strip() for piece in pieces)
    if len(pieces) > 1:
        assert all(len(piece.strip()) >= shortest for piece in pieces)


@pytest.mark.parametrize("shortest", [0, 5])
def test_short_sentences_join_a_neighbour(shortest: int) -> None:
    text = "1. Eat well.\n2. Sleep. Ok."
    found = [text[a:b] for a, b in segments(text, [(0, 2), (3, 12), (13, 15), (16, 22), (23, 26)], shortest)]
    assert found == (
        ["1. Eat well.", "\n2. Sleep. Ok."] if shortest else ["1.", " Eat well.", "\n2.", " Sleep.", " Ok."]
    )


def test_white_space_goes_with_what_follows() -> None:
    text = "  One.\n\n Two. \n"
    assert [text[a:b] for a, b in segments(text, [(0, 8), (8, 15)])] == ["  One.", "\n\n Two. \n"]


def test_spacy_sentences_of_real_text_are_kept_whole() -> None:
    from retrieval.splitting import sentence_finder

    find = sentence_finder()
    text = (
        'Dr. No said "hi."  Then:\n\n- a list\n- of items\n\n\tIt cost 3.50 dollars... Really?! Yes.\r\nEnd 😀 \u200b'
    )
    spans = segments(text, find(text), 12)
    assert "".join(text[a:b] for a, b in spans) == text
    assert len(spans) >= 3
