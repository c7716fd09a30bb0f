"""Every metric against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import contains, exact_match, official_match, rouge_l, token_f1
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import METRICS, Metric, ratio

ACCURACY = METRICS["accuracy"]
ANSWERABILITY = METRICS["answerability"]
ANSWERS = METRICS["answers_answerable"]
DECLINES = METRICS["declines_unanswerable"]
LONG_FORM = METRICS["long_form"]
RETRIEVAL_RATE = METRICS["retrieval_rate"]
ROUGE_L = METRICS["rouge_l"]
BEARS_ANSWER = METRICS["citation_bears_answer"]
PRECISION = METRICS["citation_precision"]
PRECISION_ALCE = METRICS["citation_precision_alce"]
RECALL = METRICS["citation_recall"]

PASSAGES = tuple(Passage(f"p{i}", text, "T") for i, text in enumerate(["Ann wrote it.", "Bob.", "By Ann, too."], 1))
SHORT = Item("q", "who?", True, PASSAGES, gold=frozenset({"p1", "p2"}), answers=("Ann",), references=("Ann",))
LONG = Item("q", "why?", True, PASSAGES, gold=frozenset({"p1"}), answerable=True, references=("the cat sat", "a dog"))
NO_ANSWER = Item("q", "why?", True, PASSAGES, gold=frozenset(), answerable=False)
CLOSED = Item("q", "Choose.", None, label="B", options=("x", "y", "z"))


def test_defect_28_the_official_match_is_there_under_its_own_name_and_the_other_reads_words() -> None:
    assert official_match("D. Atoms", ["A"]) == 1.0
    assert contains("D. Atoms", ["A"]) == 0.0
    assert official_match("paris", ["Paris"]) == 0.0
    assert contains("It is paris.", ["London", "Paris"]) == 1.0


def test_defect_29_a_text_in_place_of_a_list_is_refused() -> None:
    for metric in (official_match, contains, exact_match, token_f1):
        with pytest.raises(UserError, match="must be a list"):
            metric("true", "false")
        with pytest.raises(UserError, match="at least one"):
            metric("true", [])
    with pytest.raises(UserError, match="must be a list"):
        rouge_l("a", "a")


def test_exact_match_takes_case_articles_and_punctuation_out() -> None:
    assert exact_match("The Beatles!", ["beatles"]) == 1.0
    assert exact_match("The Beatles of Liverpool", ["beatles"]) == 0.0


def test_token_f1() -> None:
    # 2 words in common; 3 and 4 words: 2 * 2 / 7. The other answer shares none.
    assert token_f1("in New York", ["New York City today", "Paris"]) == pytest.approx(4 / 7)
    assert token_f1("york york", ["york"]) == pytest.approx(2 / 3)
    assert token_f1("the", ["a"]) == 1.0
    assert token_f1("", ["york"]) == 0.0


def test_accuracy_reads_the_label_strictly() -> None:
    assert ACCURACY.part(CLOSED, Output("B")) == (1.0, 1.0)
    assert ACCURACY.part(CLOSED, Output("B: y")) == (0.0, 1.0)
    assert ACCURACY.part(CLOSED, None) == (0.0, 1.0)
    assert ACCURACY.part(SHORT, Output("B")) is None


def test_citations_of_two_items() -> None:
    one = Output("Ann", cited=("p1", "p3"))
    other = Output("Bob", cited=("p2",))
    silent = Output("Bob")
    # 2 of 3 citations are gold; one item has half of its gold passages, one also half, one none.
    assert ratio([PRECISION.part(SHORT, o) for o in (one, other, silent)]) == pytest.approx(2 / 3)
    assert ratio([RECALL.part(SHORT, o) for o in (one, other, silent)]) == pytest.approx(1 / 3)
    # ALCE's mean over items: 1/2, 1 and 0.
    assert ratio([PRECISION_ALCE.part(SHORT, o) for o in (one, other, silent)]) == pytest.approx(0.5)
    # p1 and p3 hold the answer, p2 does not.
    assert ratio([BEARS_ANSWER.part(SHORT, o) for o in (one, other)]) == pytest.approx(2 / 3)


def test_an_abstention_cites_nothing_and_an_unanswerable_question_has_no_right_citation() -> None:
    declined = Output("I don't know.", cited=("p1",))
    assert PRECISION.part(SHORT, declined) == (0.0, 0.0)
    assert RECALL.part(SHORT, declined) == (0.0, 1.0)
    assert PRECISION.part(NO_ANSWER, Output("Because.", cited=("p1",))) == (0.0, 1.0)
    assert RECALL.part(NO_ANSWER, Output("Because.", cited=("p1",))) is None
    assert PRECISION.part(Item("q", "?", None), Output("x", cited=("p1",))) is None


def test_an_option_that_sounds_like_an_abstention_keeps_its_citation() -> None:
    item = Item("q", "?", None, PASSAGES, gold=frozenset({"p1"}), label="I do not know", options=("I do not know", "x"))
    assert PRECISION.part(item, Output("I do not know", cited=("p1",))) == (1.0, 1.0)


def test_rouge_l() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    # Longest common subsequence "the cat" of 4 and 3 words: P = 2/4, R = 2/3, F = 4/7.
    assert rouge_l("the big cat lies", ["the cat sat", "a dog"]) == pytest.approx(4 / 7)
    assert rouge_l("", ["the cat sat"]) == 0.0
    assert LONG_FORM.part(LONG, Output("the big cat lies")) == pytest.approx((4 / 7, 1.0))
    assert ROUGE_L.part(NO_ANSWER, Output("x")) is None


def test_long_form_rewards_declining_where_there_is_no_answer() -> None:
    declined, answered = Output("I don't know."), Output("Because.")
    assert LONG_FORM.part(NO_ANSWER, declined) == (1.0, 1.0)
    assert LONG_FORM.part(NO_ANSWER, answered) == (0.0, 1.0)
    assert LONG_FORM.part(NO_ANSWER, None) == (0.0, 1.0)
    assert [ANSWERABILITY.part(item, o) for item in (NO_ANSWER, LONG) for o in (declined, answered)] == [
        (1.0, 1.0),
        (0.0, 1.0),
        (0.0, 1.0),
        (1.0, 1.0),
    ]
    assert (DECLINES.part(LONG, declined), ANSWERS.part(LONG, declined)) == (None, (0.0, 1.0))
    assert (DECLINES.part(NO_ANSWER, declined), ANSWERS.part(NO_ANSWER, declined)) == ((1.0, 1.0), None)


def test_defect_30_three_of_four_questions_retrieved_is_three_quarters() -> None:
    read = Output("x", read=("p1",), retrieved=True)
    in_vain = Output("x", retrieved=True)
    assert ratio([RETRIEVAL_RATE.part(SHORT, o) for o in (read, read, read, in_vain)]) == 0.75


def test_effort_is_a_mean_over_answers_and_leaves_failures_out() -> None:
    tokens = METRICS["prompt_tokens"]
    outputs = [Output("x", usage={"prompt_tokens": 10}), Output("x", usage={"prompt_tokens": 30}), None]
    assert ratio([tokens.part(SHORT, output) for output in outputs]) == 20.0


def test_no_metric_returns_nan_in_silence() -> None:
    broken = Metric("broken", lambda item, output: (math.nan, 1.0))
    with pytest.raises(ValueError, match="broken of item 'q' is"):
        broken.part(SHORT, Output("x"))
    assert ratio([None, (0.0, 0.0)]) is None
    assert ratio([]) is None
