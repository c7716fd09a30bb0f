"""Questions with several right answers, each written in several ways: how many of them an answer holds. Pure text.

Three readings of "holds": `answer_recall` is an exact substring (the self-interpretation paper), `str_em` a substring
after SQuAD normalisation of the first line (ALCE's STR-EM for ASQA), `answer_recall_words` whole words of the whole
text. A question with a flat list of answers counts as one answer that is written in several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from selfrag.errors import UserError
from selfrag.evaluation.containment import contains_any, squad_normalise
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.alce_text import evaluated
from selfrag.evaluation.metrics.metric import Metric, mean_of
from selfrag.evaluation.metrics.output import Output

AnswerSets: TypeAlias = Sequence[Sequence[str]]


def sets_of(item: Item) -> AnswerSets | None:
    """The right answers of an item, each with its ways of being written; None if the item has none."""
    if item.answer_sets:
        return item.answer_sets
    return (item.answers,) if item.answers else None


def answer_recall(text: str, sets: AnswerSets) -> float:
    """Share of the answers of which some form is an exact substring of the text (section 4 of the paper)."""
    return _share(sets, lambda forms: any(form in text for form in forms if form))


def answer_recall_words(text: str, sets: AnswerSets) -> float:
    """Share of the answers of which some form occurs as whole words, text and form normalised."""
    return _share(sets, lambda forms: contains_any(text, forms))


def str_em(text: str, sets: AnswerSets) -> float:
    """ALCE's STR-EM: share of the answers of which some form is a substring, both normalised, in the first line.

    A form that normalises to nothing never counts; in ALCE's code it always does.
    """
    said = squad_normalise(evaluated(text))
    return _share(sets, lambda forms: any(form in said for form in map(squad_normalise, forms) if form))


def str_hit(text: str, sets: AnswerSets) -> float:
    """1 if STR-EM finds every answer, else 0."""
    return float(str_em(text, sets) == 1.0)


def _share(sets: AnswerSets, found: Callable[[Sequence[str]], bool]) -> float:
    if isinstance(sets, str) or not sets or any(isinstance(forms, str) or not forms for forms in sets):
        raise UserError(f"answers must be a list of lists, each of at least one text, not {sets!r:.60}")
    return sum(map(found, sets)) / len(sets)


def _on_sets(name: str, score: Callable[[str, AnswerSets], float]) -> Metric:
    def value(item: Item, output: Output) -> float | None:
        sets = sets_of(item)
        return None if sets is None else score(output.text, sets)

    return Metric(name, mean_of(value))


ANSWER_RECALL = _on_sets("answer_recall", answer_recall)
ANSWER_RECALL_WORDS = _on_sets("answer_recall_words", answer_recall_words)
STR_EM = _on_sets("str_em", str_em)
STR_HIT = _on_sets("str_hit", str_hit)
