"""Long answers: ROUGE-L against human answers, and whether a question without an answer in its passages is declined."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from retrieval.splitting import sentences
from selfrag.errors import UserError, require
from selfrag.evaluation.containment import abstains
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.alce_text import evaluated
from selfrag.evaluation.metrics.metric import Metric, mean_of
from selfrag.evaluation.metrics.output import Output
from selfrag.intrinsics.sentences import rules

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


def _answers(item: Item, output: Output) -> float | None:
    return float(not abstains(output.text)) if item.answerable is True else None


LONG_FORM = Metric("long_form", mean_of(long_form), needs=_ROUGE)
ROUGE_L = Metric("rouge_l", mean_of(_rouge), needs=_ROUGE)
ROUGE_LSUM = Metric("rouge_lsum", mean_of(_rouge_sum), needs=_ROUGE)
ANSWERABILITY = Metric("answerability", mean_of(answered_rightly))
DECLINES = Metric("declines_unanswerable", mean_of(_declines))
ANSWERS = Metric("answers_answerable", mean_of(_answers))
