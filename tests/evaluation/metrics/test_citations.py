"""Citation figures by hand: against gold, and by entailment as ALCE defines them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.citations import (
    Cited,
    CitedSentence,
    by_passage,
    by_sentence,
    cited_sentences,
    cites,
    claim_recall,
    marked_sentences,
    pair_figures,
    premise,
)
from selfrag.evaluation.metrics.registry import get_metric, ratio

PASSAGES = {one.id: one for one in (Passage("p1", "Ann wrote it.", "Ann"), Passage("p2", "It rained.", ""))}
THREE = tuple(Passage(f"p{i}", text, "T") for i, text in enumerate(["Ann wrote it.", "Bob.", "By Ann, too."], 1))
SHORT = Item("q", "who?", True, THREE, gold=frozenset({"p1", "p2"}), answers=("Ann",))
NO_ANSWER = Item("q", "why?", True, THREE, gold=frozenset(), answerable=False)


def figure(name: str, *outputs: Output) -> float | None:
    return ratio([get_metric(name).part(SHORT, one) for one in outputs])


def test_citations_of_two_items() -> None:
    one, other, silent = Output("Ann", cited=("p1", "p3")), Output("Bob", cited=("p2",)), Output("Bob")
    # 2 of 3 citations are gold; one item has half of its gold passages, one also half, one none.
    assert figure("citation_precision", one, other, silent) == pytest.approx(2 / 3)
    assert figure("citation_recall", one, other, silent) == pytest.approx(1 / 3)
    # ALCE's mean over items: 1/2, 1 and 0.
    assert figure("citation_precision_alce", one, other, silent) == pytest.approx(0.5)
    # p1 and p3 hold the answer, p2 does not.
    assert figure("citation_bears_answer", one, other) == pytest.approx(2 / 3)
    # P, R = 1/2, 1/2; then 1, 1; then nothing is cited: the mean F is not the F of the means.
    both = Output("Ann", cited=("p1", "p2"))
    assert figure("citation_f1", one, both, silent) == pytest.approx((0.5 + 1 + 0) / 3)


def test_an_abstention_cites_nothing_and_an_unanswerable_question_has_no_right_citation() -> None:
    precision, recall = get_metric("citation_precision"), get_metric("citation_recall")
    declined = Output("I don't know.", cited=("p1",))
    assert (precision.part(SHORT, declined), recall.part(SHORT, declined)) == ((0.0, 0.0), (0.0, 1.0))
    assert precision.part(NO_ANSWER, Output("Because.", cited=("p1",))) == (0.0, 1.0)
    assert recall.part(NO_ANSWER, Output("Because.", cited=("p1",))) is None
    assert precision.part(Item("q", "?", None), Output("x", cited=("p1",))) is None
    # An option that sounds like an abstention keeps its citation.
    item = Item("q", "?", None, THREE, gold=frozenset({"p1"}), label="I do not know", options=("I do not know", "x"))
    assert precision.part(item, Output("I do not know", cited=("p1",))) == (1.0, 1.0)


GOLD = [[Cited(0, "p", 0), Cited(0, "p", 1), Cited(1, "q", 0)], [Cited(0, "p", 2)]]
GIVEN = [[Cited(0, "p", 1), Cited(1, "p", 0)], [Cited(0, "p", 2)]]


def test_pairs_by_hand() -> None:
    found = pair_figures([by_sentence(one) for one in GOLD], [by_sentence(one) for one in GIVEN])
    values = [one.value for one in (found.precision, found.recall, found.f1, found.exact)]
    assert values == pytest.approx([2 / 3, 2 / 4, 4 / 7, 0.5])
    # Gold (0, p), (1, q) and (0, p); given (0, p), (1, p) and (0, p).
    found = pair_figures([by_passage(one) for one in GOLD], [by_passage(one) for one in GIVEN])
    assert found.precision.value == found.recall.value == found.f1.value == pytest.approx(2 / 3)
    found = pair_figures([{1}, {2}], [set(), set()])
    assert found.precision.value == found.recall.value == found.f1.value == 0.0
    assert pair_figures([set()], [set()]).exact.value == 1.0
    with pytest.raises(ValueError, match="shorter"):
        pair_figures([{1}], [])


sets = st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))), min_size=1, max_size=8)


@settings(max_examples=20, deadline=None)
@given(sets)
def test_pairs_agree_with_scikit_learn(pairs: list[tuple[set[int], set[int]]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    truth = [[number in gold for number in range(6)] for gold, _ in pairs]
    said = [[number in given for number in range(6)] for _, given in pairs]
    found = pair_figures([gold for gold, _ in pairs], [given for _, given in pairs])
    expected = sklearn.precision_recall_fscore_support(truth, said, average="micro", zero_division=0)[:3]
    assert (found.precision.value, found.recall.value, found.f1.value) == pytest.approx(expected)


class Letters:
    """A premise that holds all letters of a claim entails it; `?` in a claim leaves the judge without a verdict."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[str, str]]] = []

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.rounds.append(list(pairs))
        return [None if "?" in claim else set(claim) <= set(premise) for premise, claim in pairs]


def test_alce_by_hand() -> None:
    response = [
        CitedSentence("ab", ("a", "b", "c")),  # together: yes; a and b are needed, c is not: 1, 2 of 3
        CitedSentence("d", ("d", "dx")),  # each alone is enough: 1, 2 of 2
        CitedSentence("e", ("f",)),  # does not entail: 0, 0 of 1
        CitedSentence("g"),  # cites nothing: 0
    ]
    found, none = cites([response, []], Letters())
    assert none is None
    assert (found.recall, found.precision) == pytest.approx((2 / 4, 4 / 6))
    assert found.f1 == pytest.approx(2 * 0.5 * (4 / 6) / (0.5 + 4 / 6))
    # The fourth citation would have been enough, but is not read.
    three, uncited = cites([[CitedSentence("z", ("a", "b", "c", "z"))], [CitedSentence("a")]], Letters())
    assert [(one.recall, one.precision, one.f1) for one in (three, uncited) if one] == [(0.0, 0.0, 0.0)] * 2


def test_a_missing_verdict_leaves_a_response_out_and_only_where_it_is_needed() -> None:
    sure = [CitedSentence("a", ("a",))]
    unknown = [CitedSentence("a", ("a",)), CitedSentence("?", ("a",))]
    uncited = [CitedSentence("?")]  # nobody needs to be asked
    found = cites([sure, unknown, uncited, []], Letters())
    values = [None if one is None else (one.recall, one.precision, one.f1) for one in found]
    assert values == [(1.0, 1.0, 1.0), None, (0.0, 0.0, 0.0), None]


def test_the_judge_is_asked_in_three_rounds_and_only_for_what_is_needed() -> None:
    judge = Letters()
    cites([[CitedSentence("ab", ("a", "ab")), CitedSentence("z", ("a", "b")), CitedSentence("a", ("a",))]] * 2, judge)
    assert judge.rounds == [
        [("a\nab", "ab"), ("a\nb", "z"), ("a", "a")],
        [("a", "ab"), ("ab", "ab")],  # not of `z`, which is not recalled
        # ("ab", "ab") is what is left without the passage that does not entail, and is known already
    ]


def test_claim_recall_by_hand() -> None:
    judge = Letters()
    found = claim_recall(["abc [1]", "", "ab", "ab"], [["a", "ac", "d"], ["a"], [], ["a", "?"]], judge)
    assert found == [pytest.approx(2 / 3), 0.0, None, None]
    assert claim_recall([], [], judge) == []
    assert claim_recall(["ab [1]\ncd"], [["a", "c"]], judge) == [0.5]  # the first line
    judge.rounds.clear()
    claim_recall(["ab", "ab", ""], [["a", "b"], ["a"], ["c"]], judge)
    assert judge.rounds == [[("ab", "a"), ("ab", "b")]]  # each pair once, nothing of empty answers


def test_sentences_cite_their_segment() -> None:
    output = Output("Ann did. It rained. So.", ("p1",), segments=(("Ann did. It rained.", "p1"), (" So.", None)))
    own = ("Title: Ann\nAnn wrote it.",)
    wanted = (CitedSentence("Ann did.", own), CitedSentence("It rained.", own), CitedSentence("So."))
    assert cited_sentences(output, PASSAGES) == wanted

    # A system that rests on all it read cites all with every sentence; an abstention cites nothing.
    output = Output("Ann. Bob.", ("p1", "p2"), ("p1", "p2"), True, (("Ann. Bob.", None),))
    both = (premise(PASSAGES["p1"]), "It rained.")
    assert cited_sentences(output, PASSAGES) == (CitedSentence("Ann.", both), CitedSentence("Bob.", both))
    output = Output("I don't know.", ("p1",), segments=(("I don't know.", "p1"),))
    assert cited_sentences(output, PASSAGES) == (CitedSentence("I don't know."),)
    with pytest.raises(UserError, match="'p9' is not known; give the index"):
        cited_sentences(Output("Ann.", ("p9",), segments=(("Ann.", "p9"),)), PASSAGES)


def test_numbers_in_brackets_are_citations_where_a_caller_says_so() -> None:
    """A system that would else cite all it read cites what it says, of the first line, as in ALCE."""
    found = marked_sentences("Ann wrote [1][2]. It rained. [2] So it did [3].", list(PASSAGES.values()))
    assert found == (
        CitedSentence("Ann wrote.", tuple(map(premise, PASSAGES.values()))),
        CitedSentence("It rained.", ("It rained.",)),
        CitedSentence("So it did."),  # there is no third passage
    )
    output = Output("Ann wrote [2]. It rained.\n[1] So.", ("p2",), ("p1", "p2"), True, (("..", None),))
    wanted = (CitedSentence("Ann wrote.", ("It rained.",)), CitedSentence("It rained."))
    assert cited_sentences(output, PASSAGES, marked=True) == wanted
    own = Output("Ann did [2].", ("p1",), ("p1", "p2"), True, (("Ann did [2].", "p1"),))
    assert cited_sentences(own, PASSAGES, marked=True) == cited_sentences(own, PASSAGES)  # citations by segment
