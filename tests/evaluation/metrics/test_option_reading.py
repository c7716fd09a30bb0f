"""Options read out of free text: what names one, what names none, and that an article is no option."""

from __future__ import annotations

import pytest

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import official_match, read_option
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import METRICS

OFFICIAL_MATCH = METRICS["official_match"]
OPTION_MATCH = METRICS["option_match"]
OPTION_UNREAD = METRICS["option_unread"]

LETTERS = Item("q", "Choose.", None, label="B", options=("Venus", "Mars", "a red planet"))
CLAIM = Item("q", "True?", None, label="false", options=("true", "false"))


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("B", "B"),
        (" (B) Mars", "B"),
        ("B: Mars", "B"),
        ("**B.**", "B"),
        ("The answer is B.", "B"),
        ("Answer: B\nbecause", "B"),
        ("It is Mars.", "B"),
        ("A dog", None),  # an article
        ("b", None),
        ("D. Atoms", None),
        ("Mars or Venus", None),
        ("", None),
    ],
)
def test_letters(text: str, option: str | None) -> None:
    assert read_option(text, LETTERS) == option


@pytest.mark.parametrize(
    ("text", "option"),
    [("False.", "false"), ("TRUE", "true"), ("This statement is false", "false"), ("true or false?", None)],
)
def test_words(text: str, option: str | None) -> None:
    assert read_option(text, CLAIM) == option


def test_what_cannot_be_read_is_wrong_and_counted() -> None:
    assert OPTION_MATCH.part(LETTERS, Output("It is Mars.")) == (1.0, 1.0)
    assert OPTION_MATCH.part(LETTERS, Output("Perhaps.")) == (0.0, 1.0)
    assert [OPTION_UNREAD.part(LETTERS, Output(text)) for text in ("Perhaps.", "A")] == [(1.0, 1.0), (0.0, 1.0)]
    assert OPTION_UNREAD.part(LETTERS, None) is None
    assert OPTION_MATCH.part(Item("q", "?", True, answers=("x",)), Output("x")) is None


def test_the_official_match_scores_closed_sets_by_their_label_and_translates_verdicts() -> None:
    assert OFFICIAL_MATCH.part(CLAIM, Output("# REFUTES")) == (1.0, 1.0)
    assert OFFICIAL_MATCH.part(CLAIM, Output("False")) == (0.0, 1.0)  # case-sensitive
    assert OFFICIAL_MATCH.part(LETTERS, Output("A or B")) == (1.0, 1.0)
    assert official_match(":Paris", ["Paris"]) == 1.0
    assert official_match("", ["Paris"]) == 0.0
