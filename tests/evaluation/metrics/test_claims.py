"""Claims and cited sentences by hand, with a judge that compares letters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.metrics.alce import (
    CitedSentence,
    cited_sentences,
    cites,
    claim_recall,
    marked_sentences,
    premise,
)
from selfrag.evaluation.metrics.output import Output

PASSAGES = {one.id: one for one in (Passage("p1", "Ann wrote it.", "Ann"), Passage("p2", "It rained.", ""))}


def letters(pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
    """A premise that holds all letters of a claim entails it; `?` in a claim leaves the judge without a verdict."""
    return [None if "?" in claim else set(claim) <= set(premise) for premise, claim in pairs]


def test_claim_recall_by_hand() -> None:
    found = claim_recall(["abc [1]", "", "ab", "ab"], [["a", "ac", "d"], ["a"], [], ["a", "?"]], letters)
    assert found == [pytest.approx(2 / 3), 0.0, None, None]
    assert claim_recall([], [], letters) == []


def test_claims_are_looked_for_in_the_first_line() -> None:
    assert claim_recall(["ab [1]\ncd"], [["a", "c"]], letters) == [0.5]


def test_claims_ask_each_pair_once_and_nothing_of_empty_answers() -> None:
    asked: list[tuple[str, str]] = []

    def judge(pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        asked.extend(pairs)
        return letters(pairs)

    claim_recall(["ab", "ab", ""], [["a", "b"], ["a"], ["c"]], judge)
    assert asked == [("ab", "a"), ("ab", "b")]


def test_a_missing_verdict_leaves_a_response_out_and_only_where_it_is_needed() -> None:
    sure = [CitedSentence("a", ("a",))]
    unknown = [CitedSentence("a", ("a",)), CitedSentence("?", ("a",))]
    uncited = [CitedSentence("?")]  # nobody needs to be asked
    found = cites([sure, unknown, uncited, []], letters)
    assert found[0] is not None
    assert (found[0].recall, found[0].precision, found[0].f1) == (1.0, 1.0, 1.0)
    assert found[1] is None
    assert found[2] is not None
    assert (found[2].recall, found[2].precision, found[2].f1) == (0.0, 0.0, 0.0)
    assert found[3] is None


def test_the_judge_is_asked_in_three_rounds_and_only_for_what_is_needed() -> None:
    rounds: list[list[tuple[str, str]]] = []

    def judge(pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        rounds.append(list(pairs))
        return letters(pairs)

    cites([[CitedSentence("ab", ("a", "ab")), CitedSentence("z", ("a", "b")), CitedSentence("a", ("a",))]], judge)
    assert rounds == [
        [("a\nab", "ab"), ("a\nb", "z"), ("a", "a")],
        [("a", "ab"), ("ab", "ab")],  # not of `z`, which is not recalled
        # ("ab", "ab") is what is left without the passage that does not entail, and is known already
    ]


def test_sentences_cite_their_segment() -> None:
    output = Output("Ann did. It rained. So.", ("p1",), segments=(("Ann did. It rained.", "p1"), (" So.", None)))
    assert cited_sentences(output, PASSAGES) == (
        CitedSentence("Ann did.", ("Title: Ann\nAnn wrote it.",)),
        CitedSentence("It rained.", ("Title: Ann\nAnn wrote it.",)),
        CitedSentence("So."),
    )


def test_a_system_that_rests_on_all_it_read_cites_all_with_every_sentence() -> None:
    output = Output("Ann. Bob.", ("p1", "p2"), ("p1", "p2"), True, (("Ann. Bob.", None),))
    both = (premise(PASSAGES["p1"]), "It rained.")
    assert cited_sentences(output, PASSAGES) == (CitedSentence("Ann.", both), CitedSentence("Bob.", both))


def test_an_abstention_cites_nothing_and_an_empty_answer_has_no_sentence() -> None:
    output = Output("I don't know.", ("p1",), segments=(("I don't know.", "p1"),))
    assert cited_sentences(output, PASSAGES) == (CitedSentence("I don't know."),)
    assert cited_sentences(Output(""), PASSAGES) == ()


def test_a_passage_that_nobody_knows_is_named() -> None:
    with pytest.raises(UserError, match="'p9' is not known; give the index"):
        cited_sentences(Output("Ann.", ("p9",), segments=(("Ann.", "p9"),)), PASSAGES)


def test_marks_are_read_where_a_caller_says_so() -> None:
    passages = list(PASSAGES.values())
    found = marked_sentences("Ann wrote [1][2]. It rained. [2] So it did [3].", passages)
    assert found == (
        CitedSentence("Ann wrote.", (premise(passages[0]), premise(passages[1]))),
        CitedSentence("It rained.", ("It rained.",)),
        CitedSentence("So it did."),  # there is no third passage
    )


def test_numbers_that_the_wording_asks_for_are_the_citations() -> None:
    """A system that would else cite all it read cites what it says, of the first line, as in ALCE."""
    output = Output("Ann wrote [2]. It rained.\n[1] So.", ("p2",), ("p1", "p2"), True, (("..", None),))
    assert cited_sentences(output, PASSAGES, marked=True) == (
        CitedSentence("Ann wrote.", ("It rained.",)),
        CitedSentence("It rained."),
    )
    own = Output("Ann did [2].", ("p1",), ("p1", "p2"), True, (("Ann did [2].", "p1"),))
    assert cited_sentences(own, PASSAGES, marked=True) == cited_sentences(own, PASSAGES)  # citations by segment
