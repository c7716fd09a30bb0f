"""Metrics of answers by hand, and against rouge-score and trec_eval; the readings of "contains" apart."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.answers import (
    LISTS,
    answer_recall,
    answer_recall_words,
    contains,
    exact_match,
    list_figures,
    official_match,
    read_option,
    rouge_l,
    rouge_lsum,
    str_em,
    str_hit,
    token_f1,
)
from selfrag.evaluation.metrics.citations import ndcg_at, recall_at
from selfrag.evaluation.metrics.registry import Part, get_metric, ratio
from selfrag.evaluation.normalisation import abstains, contains_any

PASSAGES = tuple(Passage(f"p{i}", text, "T") for i, text in enumerate(["Ann wrote it.", "Bob.", "By Ann, too."], 1))
SHORT = Item("q", "who?", True, PASSAGES, gold=frozenset({"p1", "p2"}), answers=("Ann", "Anne"), references=("Ann",))
LONG = Item("q", "why?", True, PASSAGES, gold=frozenset({"p1"}), answerable=True, references=("the cat sat", "a dog"))
NO_ANSWER = Item("q", "why?", True, PASSAGES, gold=frozenset(), answerable=False)
LETTERS = Item("q", "Choose.", None, label="B", options=("Venus", "Mars", "a red planet"))
CLAIM = Item("q", "True?", None, label="false", options=("true", "false"))
SETS = (("New York", "NYC"), ("The Beatles",), ("Caf\u00e9",))
SEVERAL = Item("q", "which?", True, answer_sets=SETS)
BARE = Item("q", "?", True)


def part(name: str, item: Item, said: str | Output | None) -> Part | None:
    return get_metric(name).part(item, Output(said) if isinstance(said, str) else said)


def test_defect_28_the_official_match_is_there_under_its_own_name_and_the_other_reads_words() -> None:
    assert official_match("D. Atoms", ["A"]) == 1.0
    assert contains("D. Atoms", ["A"]) == 0.0
    assert official_match("paris", ["Paris"]) == 0.0
    assert contains("It is paris.", ["London", "Paris"]) == 1.0


@pytest.mark.parametrize("metric", [official_match, contains, exact_match, token_f1, rouge_l, rouge_lsum])
def test_defect_29_a_text_in_place_of_a_list_is_refused(metric: Any) -> None:
    for wrong in ("false", []):
        with pytest.raises(UserError, match="must be a list of at least one"):
            metric("true", wrong)
    for wrong in ("Paris", [], ["Paris"], [[]]):
        with pytest.raises(UserError, match="list of lists"):
            str_em("Paris", wrong)


def test_contains_whole_words_only() -> None:
    assert contains_any("It sank in Havana Harbor.", ["Manila", "the Havana harbor"])
    assert not contains_any("In 1998.", ["19", "98", "199"])
    assert contains_any("Beyonc\u00e9 sang", ["beyonce\u0301"])
    assert not contains_any("a the an", ["The"])  # normalises to nothing
    assert not contains_any("anything", [])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        *((text, True) for text in ("", " . ", "I don't know.", "I don\u2019t know", "I'm not sure.")),
        ("I do not know the answer.", True),
        *((text, False) for text in ("Paris", "No", "She did not know it then", "unknown soldier")),
    ],
)
def test_abstentions(answer: str, expected: bool) -> None:
    assert abstains(answer) is expected


def test_exact_match_and_token_f1() -> None:
    assert exact_match("The Beatles!", ["beatles"]) == 1.0
    assert exact_match("The Beatles of Liverpool", ["beatles"]) == 0.0
    # 2 words in common; 3 and 4 words: 2 * 2 / 7. The other answer shares none.
    assert token_f1("in New York", ["New York City today", "Paris"]) == pytest.approx(4 / 7)
    assert token_f1("york york", ["york"]) == pytest.approx(2 / 3)
    assert token_f1("the", ["a"]) == 1.0
    assert token_f1("", ["york"]) == 0.0


@pytest.mark.parametrize(
    ("text", "item", "option"),
    [
        *((text, LETTERS, "B") for text in ("B", " (B) Mars", "B: Mars", "**B.**", "The answer is B.", "It is Mars.")),
        ("Answer: B\nbecause", LETTERS, "B"),
        ("A dog", LETTERS, None),  # an article
        *((text, LETTERS, None) for text in ("b", "D. Atoms", "Mars or Venus", "")),
        ("False.", CLAIM, "false"),
        ("TRUE", CLAIM, "true"),
        ("This statement is false", CLAIM, "false"),
        ("true or false?", CLAIM, None),
    ],
)
def test_options_are_read(text: str, item: Item, option: str | None) -> None:
    assert read_option(text, item) == option


@pytest.mark.parametrize(
    ("name", "item", "said", "expected"),
    [
        ("accuracy", LETTERS, "B", 1.0),
        ("accuracy", LETTERS, "B: Mars", 0.0),  # letter for letter
        ("accuracy", LETTERS, None, 0.0),
        ("option_match", LETTERS, "It is Mars.", 1.0),
        ("option_unread", LETTERS, "Perhaps.", 1.0),
        ("option_unread", LETTERS, "A", 0.0),
        ("option_unread", LETTERS, None, None),
        ("official_match", CLAIM, "# REFUTES", 1.0),
        ("official_match", CLAIM, "False", 0.0),  # case-sensitive
        ("official_match", SHORT, ":Ann", 1.0),
        ("answer_recall", SHORT, "by anne", 0.0),
        ("str_em", SHORT, "by anne", 1.0),
        ("str_em", SEVERAL, "NYC", 1 / 3),
        ("str_hit", BARE, "x", None),
        ("long_form", LONG, "the big cat lies", 4 / 7),
        ("long_form", NO_ANSWER, "I don't know.", 1.0),
        ("long_form", NO_ANSWER, None, 0.0),
        ("answerability", NO_ANSWER, "Because.", 0.0),
        ("answerability", LONG, "I don't know.", 0.0),
        ("declines_unanswerable", NO_ANSWER, "I don't know.", 1.0),
        ("answers_answerable", LONG, "I don't know.", 0.0),
        ("words", BARE, "Ann wrote [1][2] it.", 3.0),
    ],
)
def test_metrics_of_one_answer(name: str, item: Item, said: str | None, expected: float | None) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    assert part(name, item, said) == (None if expected is None else pytest.approx((expected, 1.0)))


def test_three_readings_of_contains() -> None:
    text = "It was NYC, where beatles lived [1]."
    assert answer_recall(text, SETS) == pytest.approx(1 / 3)  # "beatles" is not "The Beatles" letter for letter
    assert str_em(text, SETS) == answer_recall_words(text, SETS) == pytest.approx(2 / 3)
    assert answer_recall("a nyctalope", SETS) == answer_recall_words("a nyctalope", SETS) == 0.0
    assert str_em("a nyctalope", SETS) == pytest.approx(1 / 3)  # a substring, as in ALCE


def test_str_em_reads_the_first_line_and_no_citation_marks() -> None:
    assert str_em("New [1] York\nThe Beatles", SETS) == pytest.approx(1 / 3)
    assert answer_recall_words("New York.\nThe Beatles", SETS) == pytest.approx(2 / 3)
    assert str_em("\n\n New York", SETS) == pytest.approx(1 / 3)
    assert str_em("anything", [["The"], ["?"], [""]]) == answer_recall("anything", [[""]]) == 0.0
    assert (str_hit("NYC, beatles, caf\u00e9", SETS), str_hit("NYC, beatles", SETS)) == (1.0, 0.0)


def test_qampari_by_hand() -> None:
    gold = [["Big Ben"], ["Nelson's Column", "the column of Nelson"], ["Hyde Park"]]
    found = list_figures("Big Ben, Column of Nelson, Eiffel Tower [1].\nHyde Park", gold)
    assert found == pytest.approx(dict.fromkeys(LISTS, 2 / 3) | {"list_length": 3})
    # Five right answers are as good as all for recall-5.
    gold = [[letter] for letter in "bcdefghij"]
    found = list_figures("b, c, d, e, f, x", gold)
    assert (found["list_recall"], found["list_recall_5"]) == pytest.approx((5 / 9, 1.0))
    assert found["list_f1_5"] == pytest.approx(2 * (5 / 6) / (5 / 6 + 1))
    assert list_figures("", gold)["list_f1"] == 0.0
    item = Item("q", "which?", True, answer_sets=(("x",), ("y",)))
    figures = {name: part(name, item, "x, z") for name in LISTS}
    assert figures == dict.fromkeys(LISTS, (0.5, 1.0)) | {"list_length": (2.0, 1.0)}
    assert (part("list_f1_5", item, None), part("list_length", item, None)) == ((0.0, 1.0), None)


REFERENCES = ("The cat sat. The dog barked loudly.", "It rained all day in the old town.")


def test_rouge_by_hand() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    # Longest common subsequence "the cat" of 4 and 3 words: P = 2/4, R = 2/3, F = 4/7.
    assert rouge_l("the big cat lies", ["the cat sat", "a dog"]) == pytest.approx(4 / 7)
    assert rouge_l("", ["the cat sat"]) == rouge_lsum("", REFERENCES) == 0.0
    # The summary level does not mind the order of sentences; one subsequence over the whole text does.
    swapped = "The dog barked loudly. The cat sat."
    assert rouge_lsum(swapped, REFERENCES) == 1.0
    assert rouge_l(swapped, REFERENCES) == pytest.approx(4 / 7)
    # Of the reference's 7 words the union over its sentences finds "the cat" and "the dog": 4 of 7; 5 words are said.
    found = rouge_lsum("The cat lies. The dog.", REFERENCES[:1])
    assert found == pytest.approx(2 * (4 / 5) * (4 / 7) / (4 / 5 + 4 / 7))


def test_defect_30_three_of_four_questions_retrieved_is_three_quarters() -> None:
    read, in_vain = Output("x", read=("p1",), retrieved=True), Output("x", retrieved=True)
    assert ratio([part("retrieval_rate", SHORT, o) for o in (read, read, read, in_vain)]) == 0.75

    # Effort is a mean over answers and leaves failures out.
    outputs = [Output("x", usage={"prompt_tokens": 10}), Output("x", usage={"prompt_tokens": 30}), None]
    assert ratio([part("prompt_tokens", SHORT, output) for output in outputs]) == 20.0


def test_recall_and_ndcg_by_hand() -> None:
    ranking = ["a", "x", "b", "y", "c"]
    assert [recall_at(ranking, {"a", "b", "z"}, k) for k in (1, 3)] == pytest.approx([1 / 3, 2 / 3])
    assert (recall_at([], {"a"}, 5), recall_at(ranking, set(), 5)) == (0.0, None)
    # Gains 3, 0, 1 at ranks 1 to 3, ideal 3, 2, 1.
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg_at(["a", "x", "c"], {"a": 3, "b": 2, "c": 1}, 3) == pytest.approx((3 + 1 / 2) / ideal)
    assert (ndcg_at(["x"], {"a": 1}, 3), ndcg_at(["x"], {"a": 0}, 3)) == (0.0, None)
    item, output = Item("q", "who?", True, gold=frozenset({"b", "z"})), Output("x", read=("a", "b"), retrieved=True)
    assert part("retrieval_recall@2", item, output) == (0.5, 1.0)  # of what the model was shown
    assert part("retrieval_recall@2", NO_ANSWER, output) is None
    # A passage named twice counts once.
    assert recall_at(["a", "a", "b"], {"a", "b"}, 2) == 1.0
    assert ndcg_at(["a", "a"], {"a": 1, "b": 1}, 2) == pytest.approx(1 / (1 + 1 / math.log2(3)))
    with pytest.raises(ValueError, match="k=0"):
        recall_at(["a"], {"a"}, 0)


def test_both_agree_with_trec_eval() -> None:
    measures = pytest.importorskip("ir_measures")
    rng = random.Random(5)
    documents = [f"d{i}" for i in range(30)]
    qrels, run, rankings = {}, {}, {}
    for number in range(40):
        query = f"q{number}"
        qrels[query] = {one: rng.randint(0, 3) for one in rng.sample(documents, rng.randint(1, 12))}
        rankings[query] = rng.sample(documents, rng.randint(1, 25))
        run[query] = {one: 100.0 - rank for rank, one in enumerate(rankings[query])}
    wanted = [measures.parse_measure(f"{name}@{k}") for name in ("R", "nDCG") for k in (1, 5, 10, 20)]
    compared = 0
    for found in measures.iter_calc(wanted, qrels, run):
        ranking, gains = rankings[found.query_id], qrels[found.query_id]
        k = found.measure.params["cutoff"]
        relevant = [one for one, gain in gains.items() if gain > 0]
        ours = recall_at(ranking, relevant, k) if found.measure.NAME == "R" else ndcg_at(ranking, gains, k)
        assert (ours or 0.0) == pytest.approx(found.value, abs=1e-4)  # trec_eval gives four digits
        compared += 1
    assert compared == 40 * 8
