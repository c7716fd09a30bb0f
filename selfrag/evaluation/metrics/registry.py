"""Metrics by name, so that a data file or a command line can say what it is scored by. Computes nothing.

A name is canonical: `metric(name).name == name`. Metrics of one answer are values (`Metric`); the names in `JUDGED`
need a model beside the one that answered, and are computed over finished runs (`selfrag.evaluation.metrics.judging`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from retrieval.checks import unknown_name
from selfrag.errors import UserError
from selfrag.evaluation.metrics.answer_sets import ANSWER_RECALL, ANSWER_RECALL_WORDS, STR_EM, STR_HIT
from selfrag.evaluation.metrics.answers import CONTAINS, EXACT_MATCH, OFFICIAL_MATCH, TOKEN_F1
from selfrag.evaluation.metrics.citations import BEARS_ANSWER, CITATIONS, F1
from selfrag.evaluation.metrics.closed import ACCURACY, OPTION_MATCH, OPTION_UNREAD
from selfrag.evaluation.metrics.effort import EFFORT, WORDS
from selfrag.evaluation.metrics.long_form import ANSWERABILITY, ANSWERS, DECLINES, LONG_FORM, ROUGE_L, ROUGE_LSUM
from selfrag.evaluation.metrics.metric import Metric
from selfrag.evaluation.metrics.qampari import LISTS
from selfrag.evaluation.metrics.retrieval import retrieval_metric

_SHORT = (CONTAINS, OFFICIAL_MATCH, EXACT_MATCH, TOKEN_F1)
_CLOSED = (ACCURACY, OPTION_MATCH, OPTION_UNREAD)
_SEVERAL = (ANSWER_RECALL, ANSWER_RECALL_WORDS, STR_EM, STR_HIT, *LISTS)
_LONG = (LONG_FORM, ROUGE_L, ROUGE_LSUM, ANSWERABILITY, DECLINES, ANSWERS)
_CITING = (*CITATIONS, F1, BEARS_ANSWER)

METRICS: Mapping[str, Metric] = MappingProxyType(
    {one.name: one for one in (*_SHORT, *_CLOSED, *_SEVERAL, *_LONG, *_CITING, *EFFORT, WORDS)}
)
"""All metrics without a parameter."""

PARAMETRIC = ("retrieval_recall@K", "retrieval_ndcg@K")
_RECALL = re.compile(r"retrieval_recall@(\d{1,6})")
_NDCG = re.compile(r"retrieval_ndcg@(\d{1,6})")

JUDGED: Mapping[str, str] = MappingProxyType(
    {
        "citation_recall_nli": "an entailment judge",
        "citation_precision_nli": "an entailment judge",
        "citation_f1_nli": "an entailment judge",
        "claim_recall": "an entailment judge",
        "factscore": "facts and their verdicts",
        "mauve": "a model that gives features of texts",
    }
)
"""Metrics that a second model computes, and what they need."""


def metric(name: str) -> Metric:
    """The metric of a name, such as `contains`, `str_em` or `retrieval_recall@5`.

    Raises:
        UserError: there is none; lists the known ones.
    """
    if (found := METRICS.get(name)) is not None:
        return found
    if match := _RECALL.fullmatch(name):
        return retrieval_metric("recall", int(match[1]))
    if match := _NDCG.fullmatch(name):
        return retrieval_metric("ndcg", int(match[1]))
    if name in JUDGED:
        raise UserError(f"metric {name} needs {JUDGED[name]}; compute it on the finished run: selfrag eval judge")
    raise unknown_name("metric", name, (*METRICS, *PARAMETRIC), "docs/experiments/metrics.md")


def metrics(names: Iterable[str]) -> tuple[Metric, ...]:
    """Several metrics in the order of their names.

    Raises:
        UserError: as `metric`, one is named twice, or none is.
    """
    found = tuple(metric(name) for name in names)
    seen: set[str] = set()
    for one in found:
        if one.name in seen:
            raise UserError(f"metric {one.name} is named twice")
        seen.add(one.name)
    if not found:
        raise UserError("no metric; name at least one, such as contains")
    return found


def is_count(name: str) -> bool:
    """Whether a figure is shown as it is, and not in percent; names of others than these metrics are shares."""
    bare = name.removesuffix(judge_of(name))
    found = METRICS.get(bare)
    return bare == "facts" or (found is not None and found.unit == "count")


def scale_of(name: str) -> float:
    """What a figure is multiplied by where it is shown: shares are shown in percent."""
    return 1.0 if is_count(name) else 100.0


def judge_of(name: str) -> str:
    """What follows the name of a metric where a second model computed it, such as ` (t5_xxl)`; else nothing."""
    return "".join(name.partition(" (")[1:])
