from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo_rows.drafts import detokenize, sentences, window, without

TEXT = "One two three four. Five six seven eight. Nine ten eleven twelve. Thirteen fourteen fifteen sixteen."


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("He said `` yes '' .", 'He said "yes".'),
        ("the 19th - century town ( 1900 ) , it 's old", "the 19th-century town (1900), it's old"),
        ("-LRB- born 1978 -RRB- is", "(born 1978) is"),
        ("They did n't go", "They didn't go"),
        ("already clean, isn't it?", "already clean, isn't it?"),
    ],
)
def test_detokenize(raw: str, clean: str) -> None:
    assert detokenize(raw) == clean


def test_sentences_do_not_end_at_abbreviations() -> None:
    assert sentences("Dr. Smith left the U.S. in May. He came back.") == [
        "Dr. Smith left the U.S. in May.",
        "He came back.",
    ]


def test_without_drops_the_sentences_that_answer() -> None:
    assert without("It is red. It is BLUE today. It is old.", ("blue",)) == "It is red. It is old."


@given(words=st.integers(4, 30), seed=st.integers(0, 50), keep=st.sampled_from(["", "six", "eleven twelve", "sixteen"]))
def test_a_window_is_short_whole_and_keeps_what_it_must(words: int, seed: int, keep: str) -> None:
    cut = window(TEXT, words, random.Random(seed), keep)
    assert len(cut.split()) <= words
    assert keep in cut
    assert cut in TEXT
    assert set(sentences(cut)) <= set(sentences(TEXT))


def test_a_sentence_longer_than_the_window_is_cut_around_what_it_must_keep() -> None:
    text = " ".join(f"w{i}" for i in range(100))
    cut = window(text, 20, random.Random(0), "w70")
    assert "w70" in cut
    assert len(cut.split()) == 20
