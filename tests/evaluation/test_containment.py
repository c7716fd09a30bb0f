from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.evaluation.normalisation import abstains, contains_any, normalise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("A man, a plan; an owl", "man plan owl"),
        ("U.S.", "us"),
        ("theatre", "theatre"),  # an article inside a word stays
        ("", ""),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_contains_whole_words_only() -> None:
    assert contains_any("It sank in Havana Harbor.", ["Manila", "the Havana harbor"])
    assert not contains_any("In 1998.", ["19", "98", "199"])
    assert contains_any("Beyoncé sang", ["beyoncé"])
    assert not contains_any("a the an", ["The"])  # normalises to nothing
    assert not contains_any("anything", [])


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_text_contains_what_stands_in_it_between_spaces(before: str, after: str) -> None:
    assert contains_any(f"{before} Paris {after}", ["Paris"])


@pytest.mark.parametrize(
    "answer", ["", " . ", "I don't know.", "I don\u2019t know", "I do not know the answer.", "I'm not sure."]
)
def test_abstentions(answer: str) -> None:
    assert abstains(answer)


@pytest.mark.parametrize("answer", ["Paris", "No", "She did not know it then", "unknown soldier"])
def test_answers_are_not_abstentions(answer: str) -> None:
    assert not abstains(answer)
