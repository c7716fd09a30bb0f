"""The best setting within limits: chosen on one half of the items, confirmed on the other half."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfrag.evaluation.comparison import estimate_of, paired_difference
from selfrag.evaluation.intervals import counted, json_values
from selfrag.evaluation.metrics.registry import Part, is_count, ratio, scale_of
from selfrag.interface import Estimate, UserError, bootstrap, count_of

HEADLINE = "headline"
"""Stands for the metric that a task is averaged by."""
_LIMIT = re.compile(r"\s*([\w.@-]+)\s*(<=|>=)\s*([\d.eE+-]+)\s*")
_HOLDS = {"<=": operator.le, ">=": operator.ge}

Scores = Mapping[str, Sequence[Part | None]]
"""Metric to one part an item."""


@dataclass(frozen=True, slots=True)
class FigureLimit:
    """A bound on a figure, `retrieval_rate<=0.4` as text."""

    metric: str
    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"

    def holds(self, figure: float | None) -> bool:
        """Return whether a figure keeps to it; an undefined one does not."""
        return figure is not None and bool(_HOLDS[self.sign](figure, self.value))


@dataclass(frozen=True, slots=True)
class Goal:
    """The highest figure of a metric among settings within limits, such as `headline,retrieval_rate<=0.4`."""

    # to be high; `headline` for the one that the task is averaged by
    metric: str = HEADLINE
    # all must hold
    limits: tuple[FigureLimit, ...] = (FigureLimit("retrieval_rate", "<=", 0.4),)

    def __str__(self) -> str:
        return ",".join([self.metric, *map(str, self.limits)])

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read `f1,retrieval_rate<=0.4,citation_precision>=0.5`."""
        metric, *limits = text.split(",")
        matches = filter(None, map(_LIMIT.fullmatch, limits))
        try:
            parsed = tuple(
                FigureLimit(match[1], match[2], float(match[3])) for match in matches
            )
        except ValueError:
            parsed = ()
        if not re.fullmatch(r"[\w.@-]+", metric.strip()) or len(parsed) < len(limits):
            raise UserError(
                f"goal {text!r}: write METRIC,METRIC<=NUMBER, such as headline,retrieval_rate<=0.4"
            )
        return cls(metric.strip(), parsed)

    def needs(self, headline: str) -> tuple[str, ...]:
        """Return the figures that it looks at, given what `headline` stands for."""
        return (
            headline if self.metric == HEADLINE else self.metric,
            *(limit.metric for limit in self.limits),
        )

    def fits(self, headline: str, known: Collection[str]) -> bool:
        """Return whether a file has the figures; a headline that is a count is nothing to be as high as can be."""
        counted = self.metric == HEADLINE and is_count(headline)
        return not counted and set(self.needs(headline)) <= set(known)

    def check(self, files: Mapping[str, tuple[str, Sequence[str], int]]) -> None:
        """Refuse what cannot be sought, before anything is decoded; files have headline, figures and item count."""
        having = []
        known: dict[str, None] = {}
        for name, (headline, metrics, items) in files.items():
            known |= dict.fromkeys(metrics)
            if self.fits(headline, metrics):
                having.append((name, items))
        if not having:
            raise UserError(
                f"goal {self}: no file has all these figures; there are {', '.join(known)}"
            )
        for name, items in having:
            if items < 2:
                raise UserError(
                    f"{name}: one item cannot be halved to choose and to confirm a setting; or give --best none"
                )


@dataclass(frozen=True, slots=True)
class ChosenSetting:
    """A setting chosen on one half and measured on the other."""

    goal: Goal  # what was sought, the headline by its name
    # of the setting; None if none kept to the limits on the first half
    name: str | None
    candidates: int  # settings that did
    chosen_at: float | None = None  # the goal's figure on the half it was chosen by
    confirmed: Estimate | None = None  # the same on the other half
    # figures of the limits on the other half, by the limit's text
    limits: Mapping[str, Estimate | None] | None = None
    kept: bool = False  # whether the limits hold on the other half
    # paired difference to the base on the other half; None for the base itself
    gain: Estimate | None = None
    base: Estimate | None = None  # figure of the base on the other half

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            **json_values(self),
            "goal": str(self.goal),
            "limits": json_values(self.limits or {}),
        }

    def __str__(self) -> str:
        if self.name is None:
            return f"goal {self.goal}: no setting keeps to the limits on the half it is chosen by"
        metric, limits = self.goal.metric, self.limits or {}
        gain, best = "it is the base", "undefined"
        if self.gain is not None:
            gain = f"difference to the base {_figure(self.gain, metric)}"
        if self.chosen_at is not None:
            best = f"{scale_of(metric) * self.chosen_at:.1f}"
        text = (
            f"goal {self.goal}: {self.name} of {count_of(self.candidates, 'settings')} within the limits,"
            f" {best} on the half it was chosen by, {_figure(self.confirmed, metric)} on the other; {gain}"
        )
        for limit in self.goal.limits:
            text += f"; {limit}: {_figure(limits[str(limit)], limit.metric)}"
        if self.goal.limits:
            text += f", the limits {'hold' if self.kept else 'do not hold'} there"
        return text


def _figure(estimate: Estimate | None, metric: str) -> str:
    return (
        "undefined" if estimate is None else counted(estimate, scale=scale_of(metric))
    )


def halves(items: int, seed: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of two random halves, each in order; the first is smaller by one where the number is odd."""
    if items < 2:
        raise UserError(
            f"{count_of(items, 'items')} cannot be halved to choose and to confirm a setting; give more"
        )
    drawn = np.random.default_rng(seed).permutation(items).tolist()
    return tuple(sorted(drawn[: items // 2])), tuple(sorted(drawn[items // 2 :]))


def choose(
    settings: Mapping[str, Scores],
    goal: Goal,
    base: str,
    headline: str,
    *,
    seed: int = 0,
    name: str = "",
) -> ChosenSetting:
    """Choose on one half, of equal settings the first, and confirm on the other; `base` is what the gain is against."""
    needed = goal.needs(headline)
    sought = Goal(needed[0], goal.limits)
    known = settings[base]
    for metric in needed:
        if metric not in known:
            raise UserError(
                f"goal {goal}: no figure {metric!r} here; there are {', '.join(known)}"
            )
    first, second = halves(len(known[sought.metric]), seed)
    # 1. the best setting within the limits on the first half
    candidates, best, highest = 0, None, None
    for setting, scores in settings.items():
        figures = {metric: ratio(_at(scores[metric], first)) for metric in needed}
        if not all(limit.holds(figures[limit.metric]) for limit in sought.limits):
            continue
        candidates += 1
        value = figures[sought.metric]
        if value is not None and (highest is None or value > highest):
            best, highest = setting, value
    if best is None:
        return ChosenSetting(sought, None, candidates)
    # 2. its figures on the second half
    columns = [settings[best][sought.metric], known[sought.metric]]
    columns += [settings[best][limit.metric] for limit in sought.limits]
    mine, of_base, *bounded = bootstrap(
        [_at(column, second) for column in columns], name=name, seed=seed
    )
    limits, kept = dict[str, Estimate | None](), True
    for limit, draws in zip(sought.limits, bounded, strict=True):
        limits[str(limit)] = estimate_of(draws)
        kept = kept and limit.holds(None if draws is None else draws.value)
    return ChosenSetting(
        goal=sought,
        name=best,
        candidates=candidates,
        chosen_at=highest,
        confirmed=estimate_of(mine),
        limits=limits,
        kept=kept,
        gain=None if best == base else paired_difference(mine, of_base),
        base=estimate_of(of_base),
    )


def _at(parts: Sequence[Part | None], positions: Sequence[int]) -> list[Part | None]:
    return [parts[i] for i in positions]
