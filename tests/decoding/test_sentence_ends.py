"""Where the first sentence of a text ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.decoding.sentence_ends import STOPS, sentence_end

ENDS = {
    "Paris is big. It|": "Paris is big.",
    "Born in 1867. She": "Born in 1867.",
    "Dr. Smith went. He": "Dr. Smith went.",
    'He said "Hi." Then': 'He said "Hi."',
    "It is 3.14 of": None,
    "See example.com for": None,
    "1. Paris": None,
    "1. Paris\n2. Rome": "1. Paris\n",
    "First line\n\nSecond": "First line\n\n",
    "Paris.\n\nThe": "Paris.\n\n",
    "Really? Yes": "Really?",
    "Wow! no": None,  # what goes on with a small letter is the same sentence
    "of the U.S. President": None,
    "in the U.S.\nNext": "in the U.S.\n",
    "J. R. Tolkien wrote": None,
    "e.g. Paris": None,
    "これは本です。次": "これは本です。",
    "यह किताब है। यह": "यह किताब है।",
    "Done.": None,  # nothing follows yet
    "Done. ": None,
    "Done.\n": "Done.\n",
    "1.\n": None,
    "Really? ": None,
    "approx. ": None,
    "これは本です。 ": "これは本です。",
    "\n\nText": None,
    "": None,
    "...": None,
    ".NET is": None,
}


@pytest.mark.parametrize("text, first", ENDS.items())
def test_the_first_sentence_is_what_ends_for_sure(text, first):
    end = sentence_end(text)
    assert (None if end is None else text[:end]) == first


@given(
    st.text(st.sampled_from([*STOPS, *'aA1"\n \t)e']), max_size=30), st.text(max_size=5)
)
def test_more_text_moves_no_end_that_was_seen(text, more):
    """But for a line break, which belongs to the sentence before it, and what a small letter goes on with."""
    end = sentence_end(text)
    if end is not None and text[end:].strip():
        assert sentence_end(text + more) == end
