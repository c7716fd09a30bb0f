"""ROUGE-L in its two forms: by hand, and against rouge-score asked directly."""

from __future__ import annotations

import pytest

from retrieval.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import rouge_l, rouge_lsum
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import METRICS

ROUGE_LSUM = METRICS["rouge_lsum"]

rouge = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed")

REFERENCES = ("The cat sat. The dog barked loudly.", "It rained all day in the old town.")


def test_the_summary_level_does_not_mind_the_order_of_sentences() -> None:
    swapped = "The dog barked loudly. The cat sat."
    assert rouge_lsum(swapped, REFERENCES) == 1.0
    # One subsequence over the whole text: "the dog barked loudly" of 7 and 7 words.
    assert rouge_l(swapped, REFERENCES) == pytest.approx(4 / 7)


def test_the_summary_level_by_hand() -> None:
    # Of the reference's 7 words the union over its sentences finds "the cat" and "the dog": 4 of 7; 5 words are said.
    assert rouge_lsum("The cat lies. The dog.", REFERENCES[:1]) == pytest.approx(
        2 * (4 / 5) * (4 / 7) / (4 / 5 + 4 / 7)
    )
    assert rouge_lsum("", REFERENCES) == 0.0


def test_both_are_those_of_rouge_score() -> None:
    scorer = rouge.RougeScorer(["rougeL", "rougeLsum"], use_stemmer=True)
    said = ("The dogs were barking. A cat sat in town.", "Rain. Rain in the town.")
    for first, second in (said, said[::-1]):
        text = f"{first} {second}"
        whole = max(scorer.score(one, text)["rougeL"].fmeasure for one in REFERENCES)
        assert rouge_l(text, REFERENCES) == pytest.approx(whole)
        lines = [one.lower().replace(". ", ".\n") for one in (text, *REFERENCES)]
        parts = max(scorer.score(one, lines[0])["rougeLsum"].fmeasure for one in lines[1:])
        assert rouge_lsum(text, REFERENCES) == pytest.approx(parts)


def test_citations_are_no_words() -> None:
    assert rouge_lsum("The cat sat [1]. The dog barked [2][3] loudly.", REFERENCES) == 1.0


def test_what_a_model_goes_on_with_in_the_next_line_is_not_scored() -> None:
    """ALCE evaluates the first line: few-shot models write another question below it."""
    assert rouge_lsum("\nThe cat sat. The dog barked loudly.\n\nQuestion: Why?", REFERENCES) == 1.0


def test_as_a_metric() -> None:
    assert ROUGE_LSUM.part(Item("q", "why?", True, references=REFERENCES), Output(REFERENCES[1])) == (1.0, 1.0)
    assert ROUGE_LSUM.part(Item("q", "why?", True), Output("x")) is None
    with pytest.raises(UserError, match="must be a list"):
        rouge_lsum("a", "a")
