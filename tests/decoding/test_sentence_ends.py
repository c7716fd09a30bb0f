"""Where the first sentence of a text ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.decoding.sentence_ends import STOPS, sentence_end

ENDS = r"""
Paris is big.¦ It|
Born in 1867.¦ She
Dr. Smith went.¦ He
He said "Hi."¦ Then
It is 3.14 of
See example.com for
1. Paris
1. Paris\n¦2. Rome
First line\n\n¦Second
Paris.\n\n¦The
Really?¦ Yes
Wow! no
of the U.S. President
in the U.S.\n¦Next
J. R. Tolkien wrote
e.g. Paris
これは本です。¦次
यह किताब है।¦ यह
Done.
Done. .
Done.\n¦
1.\n
Really? .
approx. .
これは本です。¦ .
\n\nText

...
.NET is
"""
"""What goes on with a small letter is the same sentence; behind `Done.` nothing follows yet; ` .` is a space."""


@pytest.mark.parametrize("line", ENDS.splitlines()[1:])
def test_the_first_sentence_is_what_ends_for_sure(line):
    first, mark, rest = line.replace(r"\n", "\n").replace(" .", " ").partition("¦")
    assert sentence_end(first + rest) == (len(first) if mark else None)


@given(
    st.text(st.sampled_from([*STOPS, *'aA1"\n \t)e']), max_size=30), st.text(max_size=5)
)
def test_more_text_moves_no_end_that_was_seen(text, more):
    """But for a line break, which belongs to the sentence before it, and what a small letter goes on with."""
    end = sentence_end(text)
    if end is not None and text[end:].strip():
        assert sentence_end(text + more) == end
