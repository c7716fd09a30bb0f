"""Citation figures by hand: pairs against gold, ALCE against its definition, LongBench-Cite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.evaluation.metrics.alce import CitedSentence, alce, longbench
from selfrag.evaluation.metrics.citations import Cited, by_passage, by_sentence, pair_figures

GOLD = [[Cited(0, "p", 0), Cited(0, "p", 1), Cited(1, "q", 0)], [Cited(0, "p", 2)]]
GIVEN = [[Cited(0, "p", 1), Cited(1, "p", 0)], [Cited(0, "p", 2)]]


def test_sentence_level_by_hand() -> None:
    found = pair_figures([by_sentence(one) for one in GOLD], [by_sentence(one) for one in GIVEN])
    assert found.precision.value == pytest.approx(2 / 3)
    assert found.recall.value == pytest.approx(2 / 4)
    assert found.f1.value == pytest.approx(4 / 7)
    assert found.exact.value == 0.5


def test_passage_level_by_hand() -> None:
    # Gold (0, p), (1, q) and (0, p); given (0, p), (1, p) and (0, p).
    found = pair_figures([by_passage(one) for one in GOLD], [by_passage(one) for one in GIVEN])
    assert found.precision.value == found.recall.value == found.f1.value == pytest.approx(2 / 3)


def test_no_citation_has_no_precision_and_no_recall() -> None:
    found = pair_figures([{1}, {2}], [set(), set()])
    assert found.precision.value == found.recall.value == found.f1.value == 0.0
    assert pair_figures([set()], [set()]).exact.value == 1.0
    with pytest.raises(ValueError, match="shorter"):
        pair_figures([{1}], [])


sets = st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))), min_size=1, max_size=8)


@given(sets)
def test_pairs_agree_with_scikit_learn(pairs: list[tuple[set[int], set[int]]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    truth = [[number in gold for number in range(6)] for gold, _ in pairs]
    said = [[number in given for number in range(6)] for _, given in pairs]
    found = pair_figures([gold for gold, _ in pairs], [given for _, given in pairs])
    expected = sklearn.precision_recall_fscore_support(truth, said, average="micro", zero_division=0)[:3]
    assert (found.precision.value, found.recall.value, found.f1.value) == pytest.approx(expected)


def entails(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """A claim is a set of letters; a premise that holds all of them entails it."""
    return [set(claim) <= set(premise) for premise, claim in pairs]


def test_alce_by_hand() -> None:
    response = [
        CitedSentence("ab", ("a", "b", "c")),  # together: yes; a and b are needed, c is not: 1, 2 of 3
        CitedSentence("d", ("d", "dx")),  # each alone is enough: 1, 2 of 2
        CitedSentence("e", ("f",)),  # does not entail: 0, 0 of 1
        CitedSentence("g"),  # cites nothing: 0
    ]
    found = alce([response, []], entails)
    assert found.recall.value == pytest.approx(2 / 4)
    assert found.precision.value == pytest.approx(4 / 6)
    assert found.f1 == pytest.approx(2 * 0.5 * (4 / 6) / (0.5 + 4 / 6))


def test_alce_reads_three_citations_and_takes_means_over_responses() -> None:
    # The fourth citation would have been enough, but is not read.
    first = [CitedSentence("z", ("a", "b", "c", "z"))]
    second = [CitedSentence("a", ("a",))]
    found = alce([first, second], entails)
    assert found.recall.value == 0.5
    assert found.precision.value == 0.5
    assert found.recall.n == 2


def test_alce_asks_each_question_once_and_none_without_citations() -> None:
    asked: list[tuple[str, str]] = []

    def judge(pairs: Sequence[tuple[str, str]]) -> list[bool]:
        asked.extend(pairs)
        return entails(pairs)

    alce([[CitedSentence("a", ("a",))], [CitedSentence("a", ("a",))]], judge)
    assert asked == [("a", "a")]
    found = alce([[CitedSentence("a")]], judge)
    assert (found.recall.value, found.precision.value, found.f1) == (0.0, 0.0, 0.0)


def test_longbench_cite_by_hand() -> None:
    found, f1s = longbench([[1.0, 0.5], [0.0]], [[[True, False], [True]], [[]]])
    # Response 1: R 0.75, P 2/3; response 2: R 0, P 0.
    assert found.recall.value == pytest.approx(0.375)
    assert found.precision.value == pytest.approx(1 / 3)
    assert f1s == pytest.approx([2 * 0.75 * (2 / 3) / (0.75 + 2 / 3), 0.0])
    assert found.f1 == pytest.approx(sum(f1s) / 2)
    with pytest.raises(ValueError, match="2 statements"):
        longbench([[1.0, 1.0]], [[[True]]])
