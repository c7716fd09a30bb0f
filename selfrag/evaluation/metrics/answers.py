"""Short answers against gold answers: containment in two readings, exact match and token F1. Pure text.

`official_match` is the published code's accuracy: a case-sensitive substring (case 28 of its faults: `Atoms` holds the
answer `A`). `contains_any` of `containment` is the normalised match on whole words. Exact match and F1 are SQuAD's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from retrieval.splitting import sentences
from selfrag.errors import UserError, require
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.citations import harmonic
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import Metric, Part, mean_of
from selfrag.evaluation.normalisation import (
    abstains,
    contains_any,
    evaluated,
    normalise,
    squad_normalise,
    without_marks,
)
from selfrag.evaluation.tasks.choices import choices
from selfrag.intrinsics.sentences import rules

_VERDICTS = {"SUPPORTS": "true", "REFUTES": "false"}


def official_match(text: str, answers: Sequence[str]) -> float:
    """1 if an answer is a substring of `text` as it stands, else 0.

    Before that, as in the published code, a first `#` or `:` is dropped, and a text with SUPPORTS (REFUTES) in it
    becomes `true` (`false`).
    """
    text = text[1:] if text[:1] in ("#", ":") else text
    text = next((said for verdict, said in _VERDICTS.items() if verdict in text), text)
    return float(any(answer in text for answer in _answers(answers)))


def contains(text: str, answers: Sequence[str]) -> float:
    """1 if an answer occurs in `text` as whole words, both normalised, else 0."""
    return float(contains_any(text, _answers(answers)))


def exact_match(text: str, answers: Sequence[str]) -> float:
    """1 if the normalised text is a normalised answer, else 0."""
    return float(normalise(text) in [normalise(answer) for answer in _answers(answers)])


def token_f1(text: str, answers: Sequence[str]) -> float:
    """Best F1 of the normalised words over the answers; two empty texts agree."""
    return max(_f1(normalise(text).split(), normalise(answer).split()) for answer in _answers(answers))


def _f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold))


def _answers(answers: Sequence[str]) -> Sequence[str]:
    if isinstance(answers, str) or not answers:
        raise UserError(f"answers must be a list of at least one text, not {answers!r:.60}")
    return answers


def _on_answers(name: str, score: Callable[[str, Sequence[str]], float]) -> Metric:
    def value(item: Item, output: Output) -> float | None:
        return score(output.text, item.answers) if item.answers else None

    return Metric(name, mean_of(value))


def _official(item: Item, output: Output) -> float | None:
    """The published code also scores closed sets in this way, by their label."""
    gold = (choices(item).right,) if item.options else item.answers
    return official_match(output.text, gold) if gold else None


CONTAINS = _on_answers("contains", contains)
OFFICIAL_MATCH = Metric("official_match", mean_of(_official))
EXACT_MATCH = _on_answers("exact_match", exact_match)
TOKEN_F1 = _on_answers("f1", token_f1)


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


_LEADING = re.compile(
    r"\s*+(?:(?:(?:the )?(?:correct |right )?(?:answer|option|choice))(?: is)?[\s:]++)?"
    r"[\s(\[*\"']*+(\w++)(?:[.:),\]*\"']|[^\S\n]*+(?:\n|$))",
    re.IGNORECASE,
)


def option_accuracy(item: Item, output: Output) -> float | None:
    """1 if the chosen option is the right one, letter for letter; None if the item has no options."""
    return float(output.text == choices(item).right) if item.options else None


def read_option(text: str, item: Item) -> str | None:
    """The option that a text names: as it is written at its beginning, else the only one whose words occur in it.

    Args:
        text: what a model wrote, such as `B`, `(B) Mars`, `true.` or `It is Mars.`
        item: with options.

    Returns:
        The option as it is scored; None if the text names none, or several.
    """
    surfaces = choices(item).surfaces
    if (leading := _LEADING.match(text)) and (found := _named(leading[1], surfaces)):
        return found
    if (found := _named(text, surfaces)) is not None:
        return found
    inside = [surface for surface, option in zip(surfaces, item.options, strict=True) if contains_any(text, [option])]
    return inside[0] if len(inside) == 1 else None


def _named(text: str, surfaces: tuple[str, ...]) -> str | None:
    # Letters keep their case: `a` in a sentence is an article.
    if text.strip() in surfaces:
        return text.strip()
    wanted = normalise(text)
    found = [surface for surface in surfaces if len(surface) > 1 and normalise(surface) == wanted]
    return found[0] if len(found) == 1 else None


def _match(item: Item, output: Output) -> float | None:
    return float(read_option(output.text, item) == choices(item).right) if item.options else None


def _unread(item: Item, output: Output) -> float | None:
    return float(read_option(output.text, item) is None) if item.options else None


ACCURACY = Metric("accuracy", mean_of(option_accuracy))
OPTION_MATCH = Metric("option_match", mean_of(_match))
OPTION_UNREAD = Metric("option_unread", mean_of(_unread), of_failure=None)


ENOUGH = 5
"""Answers that are as good as all, for recall-5."""


@dataclass(frozen=True, slots=True)
class ListFigures:
    """Figures of one list.

    Attributes:
        listed: pieces of the list.
        precision: share of them that is right; 0 for an empty list.
        recall: share of the gold answers that is named.
        recall_5: the same, where five right answers are as good as all.
    """

    listed: int
    precision: float
    recall: float
    recall_5: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return harmonic(self.precision, self.recall)

    @property
    def f1_5(self) -> float:
        """Harmonic mean of precision and recall-5."""
        return harmonic(self.precision, self.recall_5)


def listed(text: str) -> tuple[str, ...]:
    """The pieces of a list written with commas, normalised; pieces that normalise to nothing are left out."""
    line = evaluated(text).rstrip(".").rstrip(",")
    return tuple(piece for piece in map(squad_normalise, line.split(",")) if piece)


def list_figures(text: str, sets: AnswerSets) -> ListFigures:
    """Figures of an answer that is a list.

    Args:
        text: entities with commas between them.
        sets: right answers, each with its ways of being written; at least one.
    """
    said = listed(text)
    gold = [{squad_normalise(form) for form in forms} for forms in sets]
    right = sum(any(piece in forms for forms in gold) for piece in said)
    named = sum(not forms.isdisjoint(said) for forms in gold)
    return ListFigures(
        len(said),
        right / len(said) if said else 0.0,
        named / len(gold),
        min(ENOUGH, named) / min(ENOUGH, len(gold)),
    )


def _listing(name: str, figure: Callable[[ListFigures], float]) -> Metric:
    def value(item: Item, output: Output) -> float | None:
        sets = sets_of(item)
        return None if sets is None else figure(list_figures(output.text, sets))

    return Metric(f"list_{name}", mean_of(value))


def _length(item: Item, output: Output) -> Part | None:
    return None if sets_of(item) is None else (float(len(listed(output.text))), 1.0)


LISTS = (
    _listing("f1_5", lambda found: found.f1_5),
    _listing("precision", lambda found: found.precision),
    _listing("recall", lambda found: found.recall),
    _listing("recall_5", lambda found: found.recall_5),
    _listing("f1", lambda found: found.f1),
    Metric("list_length", _length, of_failure=None, unit="count"),
)


_ROUGE = ("rouge_score.rouge_scorer", "eval")


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Best ROUGE-L F over the references, words stemmed, by the `rouge-score` package.

    Raises:
        MissingExtraError: rouge-score is not installed.
    """
    if isinstance(references, str) or not references:
        raise UserError(f"references must be a list of at least one text, not {references!r:.60}")
    scorer = _scorer()
    return max(float(scorer.score(reference, text)["rougeL"].fmeasure) for reference in references)


def rouge_lsum(text: str, references: Sequence[str]) -> float:
    """Best summary-level ROUGE-L F over the references: common subsequences are taken sentence by sentence.

    This is the figure that ALCE and the Self-RAG paper call ROUGE-L: of the first line, without citations. Sentences
    are spaCy's rules, not NLTK's.

    Raises:
        MissingExtraError: rouge-score is not installed.
    """
    if isinstance(references, str) or not references:
        raise UserError(f"references must be a list of at least one text, not {references!r:.60}")
    said, scorer = _lines(evaluated(text)), _scorer()
    return max(float(scorer.score(_lines(one), said)["rougeLsum"].fmeasure) for one in references)


def _lines(text: str) -> str:
    text = text.lower()
    return "\n".join(text[start:end] for start, end in sentences(text, rules))


@lru_cache(maxsize=1)
def _scorer() -> Any:
    rouge = require(_ROUGE[0], extra=_ROUGE[1])
    return rouge.RougeScorer(["rougeL", "rougeLsum"], use_stemmer=True)


def long_form(item: Item, output: Output) -> float | None:
    """ROUGE-L where there is a reference; where the passages give no answer, 1 for declining and 0 for answering.

    SQuAD 2.0 scores its unanswerable questions in this way. None if the item has neither.
    """
    if item.answerable is False:
        return float(abstains(output.text))
    return _rouge(item, output)


def answered_rightly(item: Item, output: Output) -> float | None:
    """1 if a question is answered exactly when its passages allow it; None if the file does not say."""
    return None if item.answerable is None else float(abstains(output.text) != item.answerable)


def _rouge(item: Item, output: Output) -> float | None:
    return rouge_l(output.text, item.references) if item.references else None


def _rouge_sum(item: Item, output: Output) -> float | None:
    return rouge_lsum(output.text, item.references) if item.references else None


def _declines(item: Item, output: Output) -> float | None:
    return float(abstains(output.text)) if item.answerable is False else None


def _answers_answerable(item: Item, output: Output) -> float | None:
    return float(not abstains(output.text)) if item.answerable is True else None


LONG_FORM = Metric("long_form", mean_of(long_form), needs=_ROUGE)
ROUGE_L = Metric("rouge_l", mean_of(_rouge), needs=_ROUGE)
ROUGE_LSUM = Metric("rouge_lsum", mean_of(_rouge_sum), needs=_ROUGE)
ANSWERABILITY = Metric("answerability", mean_of(answered_rightly))
DECLINES = Metric("declines_unanswerable", mean_of(_declines))
ANSWERS = Metric("answers_answerable", mean_of(_answers_answerable))


def _retrieved(item: Item, output: Output) -> Part:
    """1 where evidence was used: asking in vain retrieves nothing."""
    return float(output.retrieved and bool(output.read)), 1.0


def _counted(name: str) -> Metric:
    def measure(item: Item, output: Output) -> Part:
        return float(output.usage.get(name, 0)), 1.0

    return Metric(name, measure, of_failure=None, unit="count")


def _words(item: Item, output: Output) -> Part:
    return float(len(without_marks(output.text).split())), 1.0


WORDS = Metric("words", _words, of_failure=None, unit="count")
"""Length of an answer without citations in brackets; ALCE's `length` is that of the first line."""
RETRIEVAL_RATE = Metric("retrieval_rate", _retrieved, of_failure=None)
EFFORT = (
    RETRIEVAL_RATE,
    _counted("prompt_tokens"),
    _counted("generated_tokens"),
    _counted("requests"),
    _counted("searches"),
)
