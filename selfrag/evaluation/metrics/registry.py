"""Metrics by name: `@metric("contains")` registers one, `metrics(["contains"])` finds them.

A measure maps an item and an answer to what the item adds to a numerator and a denominator; the figure over items is
one sum over the other. Another package adds metrics through the entry-point group `selfrag.metrics`: each entry point
names a module whose decorators register them. Metrics in `JUDGED` need a second model and are computed over finished
runs (`selfrag.evaluation.judging`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from selfrag.common.checks import unknown_name
from selfrag.common.errors import UserError
from selfrag.common.plugins import load_point
from selfrag.evaluation.items import Item, Output

GROUP = "selfrag.metrics"

Part: TypeAlias = tuple[float, float]
"""What one item adds to numerator and denominator. `(value, 1)` makes the figure a mean."""
Measure: TypeAlias = Callable[[Item, Output], "float | Part | None"]
Registered = TypeVar("Registered", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Metric:
    """A named measure of one answer."""

    name: str  # of the column
    # from item and output to a part, or to a value that is averaged; None where it says nothing of the item
    measure: Measure
    # part of an item that failed; None leaves it out
    of_failure: Part | None = (
        0.0,
        1.0,
    )
    # a share is shown in percent, a count as it is
    unit: Literal["share", "count"] = "share"
    # the module that the measure imports and the extra that brings it, if it is an optional one
    needs: tuple[str, str] | None = None
    about: str = ""  # what it is, in one line
    source: str = ""  # paper or tool that defines it

    def part(self, item: Item, output: Output | None) -> Part | None:
        """Return this item's part; `output` is None where the item failed.

        Raises:
            ValueError: the measure returned something that is no finite number, or a negative denominator.
        """
        # An empty output finds out whether the metric applies to a failed item at all.
        value = self.measure(item, output or Output(""))
        if value is None:
            return None
        if output is None:
            return self.of_failure
        part = value if isinstance(value, tuple) else (float(value), 1.0)
        if not (all(map(math.isfinite, part)) and part[1] >= 0):
            raise ValueError(f"{self.name} of item {item.id!r} is {part}")
        return part


class JudgedMetric(NamedTuple):
    """A metric that a second model computes: what that is, what it needs, and its source."""

    about: str
    needs: str
    source: str


_ENTAILMENT = "an entailment judge"
_ALCE = "ALCE (arXiv 2305.14627)"
JUDGED: Mapping[str, JudgedMetric] = {
    "citation_recall_nli": JudgedMetric(
        "share of claims that their citations entail", _ENTAILMENT, _ALCE
    ),
    "citation_precision_nli": JudgedMetric(
        "share of citations that are needed or enough", _ENTAILMENT, _ALCE
    ),
    "citation_f1_nli": JudgedMetric(
        "harmonic mean of the two, by answer", _ENTAILMENT, _ALCE
    ),
    "claim_recall": JudgedMetric(
        "share of a complete answer's claims that are entailed",
        _ENTAILMENT,
        f"{_ALCE}, ELI5",
    ),
    "factscore": JudgedMetric(
        "share of supported facts",
        "facts and their verdicts",
        "FActScore (arXiv 2305.14251)",
    ),
    "judgments": JudgedMetric(
        "mean score of any judge: faithfulness, answerability, utility, ..",
        "a judge",
        "docs/guides/judges.md",
    ),
    "mauve": JudgedMetric(
        "likeness to human answers",
        "a model that gives features of texts",
        "MAUVE (arXiv 2102.01454), mauve-text",
    ),
}

METRICS: dict[str, Metric] = {}
"""Registered metrics without a parameter; of other packages once `known` was called."""
PARAMETRIC: dict[str, Metric] = {}
"""Registered metrics of a depth, under names such as `retrieval_recall@K`; their measure takes the depth as well."""


def metric(
    name: str,
    *,
    source: str = "",
    about: str = "",
    reads: Callable[[Item], Any] | None = None,
    about_items: Callable[[Item], Any] | None = None,
    of_failure: Part | None = (0.0, 1.0),
    unit: Literal["share", "count"] = "share",
    needs: tuple[str, str] | None = None,
) -> Callable[[Registered], Registered]:
    """Register a function as a metric; a decorator that returns the function.

    Args:
        name: ends in `@K` for a function that takes a depth as its last argument.
        source: see `Metric`, as the others.
        about: the first line of the function's docstring if not given.
        reads: what the item has to compare with; the function is then of text and that (`f(text, gold)`) and is not
            asked where there is none. Without it the function is of item and output.
        about_items: whether the metric says anything about an item; the function is asked about such items only.
        of_failure: see `Metric`.
        unit: see `Metric`.
        needs: see `Metric`.

    Raises:
        ValueError: another metric has this name.
    """

    def register(function: Registered) -> Registered:
        if name in METRICS or name in PARAMETRIC or name in JUDGED:
            raise ValueError(f"there is a metric {name} already")
        line = about or (function.__doc__ or "").strip().partition("\n")[
            0
        ].removeprefix("Return ")
        measure: Callable[..., Any] = function
        if reads is not None:
            measure = partial(_of_text, function, reads)
        elif about_items is not None:
            measure = partial(_of_some, function, about_items)
        metrics = METRICS
        if name.endswith("@K"):
            metrics = PARAMETRIC
        metrics[name] = Metric(name, measure, of_failure, unit, needs, line, source)
        return function

    return register


def _of_text(
    score: Callable[[str, Any], float],
    reads: Callable[[Item], Any],
    item: Item,
    output: Output,
) -> Any:
    gold = reads(item)
    if not gold:
        return None
    return score(output.text, gold)


def _of_some(
    measure: Callable[..., Any],
    applies: Callable[[Item], Any],
    item: Item,
    output: Output,
    **k: int,
) -> Any:
    if not applies(item):
        return None
    return measure(item, output, **k)


@cache
def known() -> Mapping[str, Metric]:
    """Return all metrics without a parameter, those of other packages included.

    Raises:
        UserError: a package's metrics cannot be loaded.
    """
    for point in entry_points(group=GROUP):
        try:
            load_point(point)
        except Exception as error:
            raise UserError(
                f"metrics {point.value} of another package cannot be loaded: {error!r:.200}"
            ) from error
    return METRICS


def get_metric(name: str) -> Metric:
    """Return the metric of a name, such as `contains`, `str_em` or `retrieval_recall@5`."""
    if name in known():
        return known()[name]
    bare, at, depth = name.rpartition("@")
    parametric = PARAMETRIC.get(f"{bare}@K")
    if parametric is not None and at and re.fullmatch(r"\d{1,6}", depth):
        if int(depth) < 1:
            raise UserError(f"{name}: give a depth of at least 1, such as {bare}@5")
        of_depth: Callable[..., Any] = parametric.measure
        return replace(
            parametric,
            name=f"{bare}@{int(depth)}",
            measure=partial(of_depth, k=int(depth)),
        )
    if name in JUDGED:
        raise UserError(
            f"metric {name} needs {JUDGED[name].needs}; compute it on the finished run: selfrag eval judge"
        )
    raise unknown_name(
        "metric", name, (*known(), *PARAMETRIC), "docs/guides/metrics.md"
    )


def metrics(names: Iterable[str]) -> tuple[Metric, ...]:
    """Return several metrics in the order of their names.

    Raises:
        UserError: as `get_metric`, one is named twice, or none is.
    """
    chosen: dict[str, Metric] = {}
    for measured in map(get_metric, names):
        if measured.name in chosen:
            raise UserError(f"metric {measured.name} is named twice")
        chosen[measured.name] = measured
    if not chosen:
        raise UserError("no metric; name at least one, such as contains")
    return tuple(chosen.values())


def ratio(parts: Sequence[Part | None]) -> float | None:
    """Return the figure over items; None if no item counts."""
    counted = [part for part in parts if part is not None]
    if not counted:
        return None
    top, bottom = map(math.fsum, zip(*counted, strict=True))
    if not bottom:
        return None
    return top / bottom


def harmonic(precision: float, recall: float) -> float:
    """Return the harmonic mean, such as the F1 of a precision and a recall; 0 where both are 0."""
    total = precision + recall
    if not total:
        return 0.0
    return 2 * precision * recall / total


COMPUTED = "computed_tokens"
"""Figure of a run: tokens of an item's prompts that were not cached, and its new tokens."""


def is_count(name: str) -> bool:
    """Return whether a figure is shown as it is, and not in percent; names of others than these metrics are shares."""
    bare = name.removesuffix(judge_of(name))
    return bare in ("facts", COMPUTED) or (
        bare in known() and known()[bare].unit == "count"
    )


def scale_of(name: str) -> float:
    """Return what a figure is multiplied by where it is shown: shares are shown in percent."""
    if is_count(name):
        return 1.0
    return 100.0


def judge_of(name: str) -> str:
    """Return what follows the name of a metric where a second model computed it, such as ` (t5_xxl)`; else nothing."""
    return "".join(name.partition(" (")[1:])
