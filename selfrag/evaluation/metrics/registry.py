"""`Metric`: a named measure of one output, whose figure over items is a sum over a sum. Knows no task."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import (
    ACCURACY,
    ANSWER_RECALL,
    ANSWER_RECALL_WORDS,
    ANSWERABILITY,
    ANSWERS,
    CONTAINS,
    DECLINES,
    EFFORT,
    EXACT_MATCH,
    LISTS,
    LONG_FORM,
    OFFICIAL_MATCH,
    OPTION_MATCH,
    OPTION_UNREAD,
    ROUGE_L,
    ROUGE_LSUM,
    STR_EM,
    STR_HIT,
    TOKEN_F1,
    WORDS,
)
from selfrag.evaluation.metrics.citations import BEARS_ANSWER, CITATIONS, F1
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.retrieval import retrieval_metric

Part: TypeAlias = tuple[float, float]
"""What one item adds to numerator and denominator. `(value, 1)` makes the figure a mean."""

Measure: TypeAlias = Callable[[Item, Output], Part | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure with its name.

    Attributes:
        name: of the column.
        measure: from item and output to this item's part; None where the metric says nothing about such an item.
        of_failure: part of an item that failed; None leaves it out.
        unit: a share is shown in percent, a count as it is.
        needs: the module that the measure imports and the extra that brings it, if it is an optional one.
    """

    name: str
    measure: Measure
    of_failure: Part | None = (0.0, 1.0)
    unit: Literal["share", "count"] = "share"
    needs: tuple[str, str] | None = None

    def part(self, item: Item, output: Output | None) -> Part | None:
        """This item's part; `output` is None where the item failed.

        Raises:
            ValueError: the measure returned something that is no finite number, or a negative denominator.
        """
        found = self.measure(item, output) if output is not None else self._of_failure(item)
        if found is not None and not (math.isfinite(found[0]) and math.isfinite(found[1]) and found[1] >= 0):
            raise ValueError(f"{self.name} of item {item.id!r} is {found}")
        return found

    def _of_failure(self, item: Item) -> Part | None:
        # An empty output finds out whether the metric applies to the item at all.
        return None if self.measure(item, Output("")) is None else self.of_failure


def ratio(parts: Sequence[Part | None]) -> float | None:
    """The figure over items; None if no item counts."""
    known = [part for part in parts if part is not None]
    total = math.fsum(part[1] for part in known)
    return math.fsum(part[0] for part in known) / total if total else None


def mean_of(score: Callable[[Item, Output], float | None]) -> Measure:
    """A measure whose figure is the mean of `score` over the items where it is defined."""

    def measure(item: Item, output: Output) -> Part | None:
        value = score(item, output)
        return None if value is None else (float(value), 1.0)

    return measure


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
    raise UserError(f"unknown metric {name[:60]!r}; known: {', '.join((*METRICS, *PARAMETRIC, *JUDGED))}")


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
