"""The board: rivals on one model, one index and one budget, with costs, paired differences and the Pareto front."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.extensions.adaptive.system import METHODS
from selfrag.interface import (
    Draws,
    Estimate,
    Item,
    Model,
    ParetoPoint,
    Retriever,
    TaskFile,
    UserError,
    average,
    bootstrap,
    bounds_of,
    bracketed,
    markdown_section,
    pareto_front,
    ratio,
    read_manifest,
    read_runs,
    run_systems,
    scale_of,
    searched,
)

SYSTEMS = (
    "never",
    "always",
    "flare",
    "ircot",
    "self-ask",
    "iter-retgen",
    "adaptive-rag",
    "max-probability",
    "crag",
    "self-crag",
    "selfrag",
    "selfrag-always",
)
"""Systems of a board, unless others are named."""
BEFOREHAND = ("selfrag", "selfrag-always")
"""Systems that are given passages, and do not search."""
COSTS = ("requests", "prompt_tokens", "generated_tokens", "searches")
DEVELOPMENT = "development"
"""Folder of the runs that settings are chosen by."""
HEAD = (
    "system",
    "setting",
    "score",
    "difference",
    "p (Holm)",
    "front",
    "calls",
    "prompt tok.",
    "new tok.",
    "searches",
    "wall s",
    "CPU s",
)
AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One system on one file, or on average."""

    system: str  # its name
    setting: str  # that was chosen on the development part; empty for the default
    score: Estimate | None  # the headline figure
    costs: Mapping[str, float]  # of an item: `COSTS`, `seconds`, `processor_seconds`
    difference: Estimate | None  # to the reference, paired; None for the reference
    p: float | None  # of no difference, two-sided, after Holm
    on_front: bool  # no system scores as high with fewer tokens

    @property
    def tokens(self) -> float:
        """Return prompt and new tokens of an item."""
        return self.costs["prompt_tokens"] + self.costs["generated_tokens"]


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values after Holm (1979), in the same order: the probability of any false finding stays below each.

    Example:
        >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
    return adjusted


def p_value(difference: Draws) -> float:
    """Return how often resampling gives a difference of the other sign, two-sided; 1 where nothing differs."""
    samples = difference.samples[np.isfinite(difference.samples)]
    least = min((samples <= 0).sum(), (samples >= 0).sum())
    return float(min(1.0, 2 * (least + 1) / (len(samples) + 1)))


@dataclass(frozen=True, slots=True)
class Board:
    """What is run: systems of one model on files.

    Attributes:
        model: what answers.
        files: what is asked.
        out: folder of the runs.
        source: how the files were read, for the manifests.
        systems: names of systems.
        retriever: what is searched; None gives every search the passages of the item.
        passages: that Self-RAG is given of it for a question.
        budget: most tokens of an item, prompt and new ones, on the development part; None leaves settings alone.
        seed: of the development part and of the intervals.
    """

    model: Model
    files: Sequence[TaskFile]
    out: Path
    source: Mapping[str, Any]
    systems: Sequence[str] = SYSTEMS
    retriever: Retriever | None = None
    passages: int = 10
    budget: int | None = None
    seed: int = 0

    def run(self) -> dict[str, str]:
        """Run what is not recorded yet, and return the chosen setting of each system, empty for the default."""
        names = {name: name for name in self.systems}
        files = [self._checked(file) for file in self.files]
        chosen: dict[str, dict[str, Any]] = {}
        if self.budget is not None:
            halves = [halve(file, self.seed) for file in files]
            chosen = self._choose([development for development, _ in halves])
            files = [remaining for _, remaining in halves]
        self._run(names, files, self.out, chosen, "rest" if chosen else "")
        settings = dict.fromkeys(names, "")
        for name, changes in chosen.items():
            ((key, value),) = changes.items()
            settings[name] = f"{key}={value:g}"
        return settings

    def _checked(self, file: TaskFile) -> TaskFile:
        """Return a file whose items all have passages of the index, if there is one: every system reads from it.

        Raises:
            UserError: its items have options to choose from, which a method cannot do.
        """
        methods = [entry.name for entry in METHODS if entry.name in self.systems]
        if methods and not file.task.written and any(i.options for i in file.items):
            raise UserError(
                f"{file.name} is multiple choice, which these answer in words: {', '.join(methods)}; leave the file"
                " out, or name a published task with the protocol baseline"
            )
        if self.retriever is None:
            return file
        bare = [replace(item, passages=()) for item in file.items]
        return replace(file, items=searched(bare, self.retriever, self.passages))

    def _choose(self, files: Sequence[TaskFile]) -> dict[str, dict[str, Any]]:
        """Return the best setting of each method within the budget, else its cheapest, on the development part."""
        names: dict[str, str] = {}
        changes: dict[str, dict[str, Any]] = {}
        for entry in METHODS:
            tuned = entry.make.tuned
            if entry.name not in self.systems or not tuned:
                continue
            for value in entry.make.grid:
                name = f"{entry.name}-{tuned}-{value:g}"
                names[name] = entry.name
                changes[name] = {tuned: value}
        folder = self.out / DEVELOPMENT
        if not names:
            return {}
        self._run(names, files, folder, changes, DEVELOPMENT)
        chosen: dict[str, dict[str, Any]] = {}
        best: dict[str, tuple[bool, float, float]] = {}
        for name, kind in names.items():
            rows = board_rows([folder / name], [file.name for file in files], None)
            (row,) = rows[-1][1]
            is_within = row.tokens <= (self.budget or 0)
            gain = row.score.value if row.score is not None and is_within else 0.0
            rank = (is_within, gain, -row.tokens)
            if kind not in best or rank > best[kind]:
                best[kind] = rank
                chosen[kind] = changes[name]
        return chosen

    def _run(
        self,
        names: Mapping[str, str],
        files: Sequence[TaskFile],
        folder: Path,
        changes: Mapping[str, Mapping[str, Any]],
        part: str,
    ) -> None:
        source = {**self.source, "part": part} if part else self.source
        run_systems(
            names,
            self.model,
            files,
            folder,
            source=source,
            changes=changes,
            retriever=self.retriever,
        )


def halve(file: TaskFile, seed: int) -> tuple[TaskFile, TaskFile]:
    """Return a seeded half of the items of a file, and the rest."""
    count = len(file.items)
    if count < 2:
        raise UserError(f"{file.name} has one item; --budget needs two or more")
    order = random.Random(seed).sample(range(count), count // 2)  # noqa: S311 - no cryptography
    half = frozenset(order)
    development: list[Item] = []
    remaining: list[Item] = []
    for place, item in enumerate(file.items):
        (development if place in half else remaining).append(item)
    return (
        replace(file, items=tuple(development)),
        replace(file, items=tuple(remaining)),
    )


def board_rows(
    folders: Sequence[Path],
    only: Sequence[str],
    against: str | None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
) -> list[tuple[str, list[BoardRow]]]:
    """Return the rows of each file of finished runs, and of their average if there are several."""
    runs = read_runs(folders, only)
    drawn: dict[str, dict[str, Draws | None]] = {}
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for name in only:
        results = [run.files[name] for run in runs]
        head = results[0].metrics[0]
        parts = [result.scores[head] for result in results]
        bounds = [bounds_of(head)] * len(runs)
        draws = bootstrap(parts, name=name, seed=seed, bounds=bounds)
        drawn[name] = {run.name: draw for run, draw in zip(runs, draws, strict=True)}
        costs[name] = {}
        for run, result in zip(runs, results, strict=True):
            spent = read_manifest(run.folder)["files"][name]["result"]
            figures = {cost: ratio(result.scores[cost]) or 0.0 for cost in COSTS}
            for kind in ("seconds", "processor_seconds"):
                figures[kind] = spent.get(kind, 0.0) / len(result.ids)
            costs[name][run.name] = figures
    names = list(only)
    if len(only) > 1:
        names.append(AVERAGE)
        drawn[AVERAGE], costs[AVERAGE] = {}, {}
        for run in runs:
            drawn[AVERAGE][run.name] = average([drawn[name][run.name] for name in only])
            rows = [costs[name][run.name] for name in only]
            costs[AVERAGE][run.name] = {
                kind: sum(row[kind] for row in rows) / len(rows) for kind in rows[0]
            }
    return [
        (name, _rows(drawn[name], costs[name], against, settings or {}))
        for name in names
    ]


def _rows(
    drawn: Mapping[str, Draws | None],
    costs: Mapping[str, dict[str, float]],
    against: str | None,
    settings: Mapping[str, str],
) -> list[BoardRow]:
    reference = None if against is None else drawn[against]
    differences: dict[str, Draws] = {}
    points: dict[str, ParetoPoint] = {}
    for name, draws in drawn.items():
        if draws is None:
            continue
        tokens = costs[name]["prompt_tokens"] + costs[name]["generated_tokens"]
        points[name] = ParetoPoint(tokens, draws.value)
        if reference is not None and name != against:
            differences[name] = draws - reference
    adjusted = holm([p_value(draws) for draws in differences.values()])
    p_values = dict(zip(differences, adjusted, strict=True))
    best = pareto_front(points)
    rows = []
    for name, draws in drawn.items():
        difference = differences.get(name)
        row = BoardRow(
            name,
            settings.get(name, ""),
            None if draws is None else draws.estimate,
            costs[name],
            None if difference is None else difference.estimate,
            p_values.get(name),
            name in best,
        )
        rows.append(row)
    return rows


def board_markdown(
    tables: Sequence[tuple[str, Sequence[BoardRow]]],
    heads: Mapping[str, str],
    against: str,
) -> str:
    """Return a table a file; `heads` are the names of the headline figures."""
    sections = []
    for name, rows in tables:
        head = heads.get(name, "headline figures")
        scale = scale_of(head) if name in heads else 100
        lines = []
        for row in rows:
            costs = [f"{row.costs[cost]:.1f}" for cost in COSTS]
            seconds = [
                f"{row.costs[kind]:.2f}" for kind in ("seconds", "processor_seconds")
            ]
            cells = [
                row.system,
                row.setting or "-",
                bracketed(row.score, scale=scale),
                bracketed(row.difference, scale=scale),
                "-" if row.p is None else f"{row.p:.3f}",
                "yes" if row.on_front else "",
            ]
            lines.append([*cells, *costs, *seconds])
        notes = [
            f"The score is {head}, with bootstrap 95% intervals over items; differences to {against} are paired",
            "Costs are of one item; wall time is that of the batch divided by its items",
            "On the front no other system scores as high with fewer tokens",
        ]
        if any(row.system in BEFOREHAND for row in rows):
            notes.append(
                "Self-RAG reads what one search of the question found before the run; its cost is not in the table"
            )
        sections.append(markdown_section(name, HEAD, lines, notes))
    return "\n".join(sections)
