"""Answers against gold answers: string match, EM, F1, lists, options, ROUGE, declining; and what an answer took.

Three readings of "holds": an exact substring (`official_match`, `answer_recall`), a substring after SQuAD normalisation
of the first line (`str_em`, as in ALCE), whole words after normalisation (`contains`, `answer_recall_words`). A
question with several right answers has sets of forms; a flat list of answers is one answer written in several ways.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from retrieval.sentences import sentences
from selfrag.common.errors import UserError, require
from selfrag.evaluation.items import Item, Output, choices
from selfrag.evaluation.metrics.registry import METRICS, Metric, Part, harmonic, metric
from selfrag.evaluation.normalisation import (
    contains_any,
    evaluated,
    normalise,
    normalise_pair,
    without_marks,
)
from selfrag.judges.sentences import rules

SELF_RAG = "Self-RAG's code"
SQUAD = "SQuAD 1.1 (arXiv 1606.05250)"
ALCE = "ALCE (arXiv 2305.14627)"
SQUAD_2, ROUGE = "SQuAD 2.0 (arXiv 1806.03822)", "rouge-score (Lin 2004)"
_ROUGE_NEEDS = ("rouge_score.rouge_scorer", "eval")

AnswerSets: TypeAlias = Sequence[Sequence[str]]


def _texts(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str) or not texts:
        raise UserError(
            f"answers must be a list of at least one text, not {texts!r:.60}"
        )
    return texts


# Short answers


@metric("contains", reads=attrgetter("answers"), source="ours")
def contains(text: str, answers: Sequence[str]) -> float:
    """Return 1 if an answer occurs in `text` as whole words, both normalised, else 0.

    As in SQuAD, punctuation goes, so `3.5` is `35`, and accents stay, so `Malaga` is not `Málaga`.
    """
    return float(contains_any(text, _texts(answers)))


def _official_gold(item: Item) -> Sequence[str] | None:
    """Return the answers, or the label of multiple choice, which the published code scores in this way, too."""
    if item.options:
        return (choices(item).right,)
    return item.answers


@metric("official_match", reads=_official_gold, source=SELF_RAG)
def official_match(text: str, answers: Sequence[str]) -> float:
    """Return 1 if an answer is a substring of `text` as it stands, else 0.

    Before that, as in the published code, a first `#` or `:` is dropped, and a text with SUPPORTS (REFUTES) in it
    becomes `true` (`false`). The match is case-sensitive (case 28 of its faults: `Atoms` holds the answer `A`).
    """
    if text[:1] in ("#", ":"):
        text = text[1:]
    if "SUPPORTS" in text:
        text = "true"
    elif "REFUTES" in text:
        text = "false"
    return float(any(answer in text for answer in _texts(answers)))


@metric("exact_match", reads=attrgetter("answers"), source=SQUAD)
def exact_match(text: str, answers: Sequence[str]) -> float:
    """Return 1 if the normalised text is a normalised answer, else 0."""
    for answer in _texts(answers):
        answered, gold = normalise_pair(text, answer)
        if answered == gold:
            return 1.0
    return 0.0


@metric("f1", reads=attrgetter("answers"), source=SQUAD)
def token_f1(text: str, answers: Sequence[str]) -> float:
    """Return the best F1 of the normalised words over the answers; two empty texts agree."""
    pairs = [normalise_pair(text, answer) for answer in _texts(answers)]
    return max(_word_f1(said.split(), gold.split()) for said, gold in pairs)


def _word_f1(words: list[str], gold: list[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))


# Closed sets

_has_options = attrgetter("options")


@metric("accuracy", about_items=_has_options, source="ours")
def option_accuracy(item: Item, output: Output) -> float:
    """Return 1 if the chosen option is the right one, letter for letter."""
    return float(output.text == choices(item).right)


@metric("option_match", about_items=_has_options, source="ours")
def option_match(item: Item, output: Output) -> float:
    """Return 1 if a free text names the right option; one that names none, or several, is wrong."""
    return float(read_option(output.text, item) == choices(item).right)


@metric("option_unread", about_items=_has_options, of_failure=None, source="ours")
def option_unread(item: Item, output: Output) -> float:
    """Return 1 if a free text names no option, or several."""
    return float(read_option(output.text, item) is None)


_LEADING = re.compile(
    r"\s*+(?:(?:(?:the )?(?:correct |right )?(?:answer|option|choice))(?: is)?[\s:]++)?"
    r"[\s(\[*\"']*+(\w++)(?:[.:),\]*\"']|[^\S\n]*+(?:\n|$))",
    re.IGNORECASE,
)


def read_option(text: str, item: Item) -> str | None:
    """Return the option, as it is scored, that a text such as `B`, `(B) Mars`, `true.` or `It is Mars.` names.

    The one that is written at its beginning, else the only one whose words occur in it; None for none, or several.
    """
    surfaces = choices(item).surfaces
    leading = _LEADING.match(text)
    option = (leading and _match_surface(leading[1], surfaces)) or _match_surface(
        text, surfaces
    )
    if option is not None:
        return option
    return _only(
        [
            s
            for s, words in zip(surfaces, item.options, strict=True)
            if contains_any(text, [words])
        ]
    )


def _match_surface(text: str, surfaces: tuple[str, ...]) -> str | None:
    # Letters keep their case: `a` in a sentence is an article.
    if text.strip() in surfaces:
        return text.strip()
    normalised = normalise(text)
    return _only(
        [
            surface
            for surface in surfaces
            if len(surface) > 1 and normalise(surface) == normalised
        ]
    )


def _only(surfaces: list[str]) -> str | None:
    """Return the one surface; None of none or several."""
    if len(surfaces) != 1:
        return None
    return surfaces[0]


# Several right answers


def sets_of(item: Item) -> AnswerSets | None:
    """Return the right answers of an item, each with its ways of being written; None if the item has none."""
    if item.answer_sets:
        return item.answer_sets
    if not item.answers:
        return None
    return (item.answers,)


def _share(sets: AnswerSets, holds: Callable[[Sequence[str]], bool]) -> float:
    if (
        isinstance(sets, str)
        or not sets
        or any(isinstance(forms, str) or not forms for forms in sets)
    ):
        raise UserError(
            f"answers must be a list of lists, each of at least one text, not {sets!r:.60}"
        )
    return sum(map(holds, sets)) / len(sets)


@metric("answer_recall", reads=sets_of, source="self-interpretation paper, section 2.2")
def answer_recall(text: str, sets: AnswerSets) -> float:
    """Return the share of the answers of which some form is an exact substring of the text."""
    return _share(sets, lambda forms: any(form in text for form in forms if form))


@metric("answer_recall_words", reads=sets_of, source="ours")
def answer_recall_words(text: str, sets: AnswerSets) -> float:
    """Return the share of the answers of which some form occurs as whole words, text and form normalised."""
    return _share(sets, lambda forms: contains_any(text, forms))


@metric("str_em", reads=sets_of, source=f"{ALCE}, ASQA")
def str_em(text: str, sets: AnswerSets) -> float:
    """Return the share of the answers of which some form is a substring of the first line, both normalised.

    A form of articles only counts as in `contains`; in ALCE's code it always does.
    """
    line = evaluated(text)
    normalised = normalise(line)

    def occurs(form: str) -> bool:
        words = normalise(form)
        if words:
            return words in normalised
        return contains_any(line, [form])

    return _share(sets, lambda forms: any(map(occurs, forms)))


@metric("str_hit", reads=sets_of, source=f"{ALCE}, ASQA")
def str_hit(text: str, sets: AnswerSets) -> float:
    """Return 1 if STR-EM finds every answer, else 0."""
    return float(str_em(text, sets) == 1.0)


# Lists

LISTS = (
    "list_f1_5",
    "list_precision",
    "list_recall",
    "list_recall_5",
    "list_f1",
    "list_length",
)


def listed(text: str) -> tuple[str, ...]:
    """Return the pieces of the first line as a list with commas, normalised, without those of no word."""
    line = evaluated(text).rstrip(".").rstrip(",")
    return tuple(filter(None, map(_list_key, line.split(","))))


def _list_key(text: str) -> str:
    """Return a piece of a list, normalised; with articles where nothing else is left."""
    return normalise(text) or normalise_pair("", text)[1]


def list_figures(text: str, sets: AnswerSets) -> dict[str, float]:
    """Return ALCE's figures for QAMPARI of an answer that is a list, by the names in `LISTS`.

    Each piece must be one of the gold names; repeated pieces count each time, as in ALCE's code. For recall-5, five
    right answers are as good as all.
    """
    pieces = listed(text)
    gold = [set(map(_list_key, forms)) for forms in sets]
    names = set[str]().union(*gold)
    right = [piece for piece in pieces if piece in names]
    hits = sum(not forms.isdisjoint(pieces) for forms in gold)
    precision = len(right) / max(1, len(pieces))
    recall, recall_5 = hits / len(gold), min(5, hits) / min(5, len(gold))
    return {
        "list_f1_5": harmonic(precision, recall_5),
        "list_precision": precision,
        "list_recall": recall,
        "list_recall_5": recall_5,
        "list_f1": harmonic(precision, recall),
        "list_length": float(len(pieces)),
    }


def _list_figure(name: str, text: str, sets: AnswerSets) -> float:
    return list_figures(text, sets)[name]


for _name in LISTS:
    _settings: dict[str, Any] = {
        "about": f"{_name.removeprefix('list_')} of the first line as a list with commas"
    }
    if _name == "list_length":
        _settings = {"about": "pieces of the list", "of_failure": None, "unit": "count"}
    metric(_name, reads=sets_of, source=f"{ALCE}, QAMPARI", **_settings)(
        partial(_list_figure, _name)
    )


# Long answers


@lru_cache(maxsize=1)
def _scorer() -> Any:
    return require(_ROUGE_NEEDS[0], extra=_ROUGE_NEEDS[1]).RougeScorer(
        ["rougeL", "rougeLsum"], use_stemmer=True
    )


@metric("rouge_l", reads=attrgetter("references"), needs=_ROUGE_NEEDS, source=ROUGE)
def rouge_l(text: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F over the references, words stemmed."""
    return max(
        float(_scorer().score(reference, text)["rougeL"].fmeasure)
        for reference in _texts(references)
    )


@metric(
    "rouge_lsum",
    reads=attrgetter("references"),
    needs=_ROUGE_NEEDS,
    source=f"{ROUGE}, as in ALCE",
)
def rouge_lsum(text: str, references: Sequence[str]) -> float:
    """Return the best summary-level ROUGE-L F of the first line: common subsequences are taken sentence by sentence.

    This is the figure that ALCE and the Self-RAG paper call ROUGE-L. Sentences are spaCy's rules, not NLTK's.
    """
    summary = _lines(evaluated(text))
    golds = map(_lines, _texts(references))
    return max(
        float(_scorer().score(gold, summary)["rougeLsum"].fmeasure) for gold in golds
    )


def _lines(text: str) -> str:
    text = text.lower()
    return "\n".join(text[start:end] for start, end in sentences(text, rules))


@metric("long_form", needs=_ROUGE_NEEDS, source=f"rouge-score; {SQUAD_2}")
def long_form(item: Item, output: Output) -> float | None:
    """Return ROUGE-L; where the passages give no answer, 1 for declining and 0 for answering."""
    if item.answerable is False:
        return float(output.declined)
    if not item.references:
        return None
    return rouge_l(output.text, item.references)


@metric(
    "answerability",
    about_items=lambda item: item.answerable is not None,
    source=SQUAD_2,
)
def answered_rightly(item: Item, output: Output) -> float:
    """Return 1 if a question is answered exactly when its passages allow it."""
    return float(output.declined != item.answerable)


@metric(
    "declines_unanswerable",
    about_items=lambda item: item.answerable is False,
    source=SQUAD_2,
)
def declines_unanswerable(item: Item, output: Output) -> float:
    """Return 1 if a question without an answer in its passages is declined."""
    return float(output.declined)


@metric("answers_answerable", about_items=attrgetter("answerable"), source=SQUAD_2)
def answers_answerable(item: Item, output: Output) -> float:
    """Return 1 if a question with an answer in its passages is answered."""
    return float(not output.declined)


# Effort and length

EFFORT = ("retrieval_rate", "prompt_tokens", "generated_tokens", "requests", "searches")


@metric("retrieval_rate", of_failure=None, source="ours")
def retrieval_rate(item: Item, output: Output) -> float:
    """Return 1 where evidence was used: asking in vain retrieves nothing."""
    return float(output.retrieved and bool(output.read))


def _usage(name: str, item: Item, output: Output) -> float:
    return float(output.usage.get(name, 0))


for _name in EFFORT[1:]:
    _about = f"{_name.replace('_', ' ')} an answer"
    metric(_name, of_failure=None, unit="count", source="ours", about=_about)(
        partial(_usage, _name)
    )


@metric("words", of_failure=None, unit="count", source="ours")
def words(item: Item, output: Output) -> float:
    """Return the length of an answer without citations in brackets; ALCE's `length` is that of the first line."""
    return float(len(without_marks(output.text).split()))


def repeated_bigrams(text: str) -> tuple[int, int]:
    """Count the pairs of neighbouring words that occurred before in the text, and all pairs; case does not matter.

    "to be or not to be" has 1 of 5.
    """
    pairs = list(pairwise(text.lower().split()))
    return len(pairs) - len(set(pairs)), len(pairs)


def _repeated(item: Item, output: Output) -> Part | None:
    repeated, pairs = repeated_bigrams(output.text)
    return float(repeated), float(pairs)


REPEATED = Metric("repeated_bigrams", _repeated, of_failure=None)
FLUENCY = (METRICS["words"], REPEATED)
"""Stands beside citation precision where weights are swept; the paper shows MAUVE, which says nothing of one answer."""


# Reliance on memory (appendix C.1 of the paper): an item counts if its answer is right; it is from memory if none of
# the gold answers that it contains stands in a passage. The paper looks for substrings (`from_memory_substring`),
# `from_memory` for normalised words.

PUBLISHED_MEMORY: Mapping[str, float] = MappingProxyType(
    {
        "Self-RAG 7B": 0.02,
        "Alpaca 7B, 13B": 0.15,
        "Llama2-chat 13B": 0.18,
        "Alpaca 30B": 0.20,
    }
)
"""Share of right answers that are not in the passages, TriviaQA and PopQA (appendix C.1)."""


def from_memory(item: Item, output: Output) -> Part | None:
    """Count right answers, and those that stand in no passage of the item; None without short answers or passages."""
    return _outside(item, output)


def from_memory_substring(item: Item, output: Output) -> Part | None:
    """Count as `from_memory`, by exact substrings: what appendix C.1 says."""
    return _outside(
        item, output, lambda text, answers: any(answer in text for answer in answers)
    )


def _outside(
    item: Item,
    output: Output,
    holds: Callable[[str, Sequence[str]], bool] = contains_any,
) -> Part | None:
    if not item.answers or not item.passages:
        return None
    answered = [answer for answer in item.answers if holds(output.text, [answer])]
    in_passages = any(
        holds(f"{passage.title} {passage.text}", answered) for passage in item.passages
    )
    return float(bool(answered) and not in_passages), float(bool(answered))


FROM_MEMORY = Metric("from_memory", from_memory, of_failure=None)
FROM_MEMORY_SUBSTRING = Metric(
    "from_memory_substring", from_memory_substring, of_failure=None
)
MEMORY = (FROM_MEMORY, FROM_MEMORY_SUBSTRING)
