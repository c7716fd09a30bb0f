"""A run as Markdown: the paper's three tables with the published figures beside yours, and every test that was run.

`published.csv` has the figures of the paper: GPT-3.5 (gpt-3.5-turbo-0125) on 60 questions of QAMPARI with dense
retrieval. All figures are resampled together by questions, and differences are paired.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import fmean

from selfrag.common.untrusted import printable
from selfrag.evaluation.comparison import Draws, average, bootstrap
from selfrag.evaluation.intervals import NONE, Estimate
from selfrag.experiments.report_tables import ReportTable, markdown, percent, share
from selfrag.experiments.self_interpretation.faithfulness import agreement_table, effects_table, orders_table
from selfrag.experiments.self_interpretation.grid import ASKINGS, BASIC, GridCell
from selfrag.experiments.self_interpretation.replies import ALONE, MEASURES, NAMES, WHOLE
from selfrag.experiments.self_interpretation.run import GridRun

SHORT = dict(zip(MEASURES, ("answer recall", "citation P", "citation R", "citation F"), strict=True))
MAIN = (MEASURES[0], MEASURES[-1])
REPLIES = ("cites", "wrong_citations", "explains", "answer_recall_words")
ANSWER_ALONE = "answer recall, answer alone"
SETTINGS = {"examples": "examples", "cutoff": "k", "order": "order"}


@cache
def published() -> Mapping[GridCell, Mapping[str, float]]:
    """Cell of the grid to the figures that were published for it."""
    with files(__package__).joinpath("published.csv").open(encoding="utf-8") as stream:
        return {
            GridCell.from_dict(row): {name: float(row[name]) for name in MEASURES} for row in csv.DictReader(stream)
        }


def published_mean(cells: Sequence[GridCell], figure: str) -> float | None:
    """Mean of a published figure over cells; None where one of them was not published, or there is none."""
    known = [published()[cell][figure] for cell in cells if cell in published()]
    return fmean(known) if known and len(known) == len(cells) else None


@dataclass(frozen=True, slots=True)
class GridFigures:
    """Figures of the finished cells of a run."""

    draws: Mapping[GridCell, Mapping[str, Draws | None]]  # in each resampling; None where no question counts
    failed: Mapping[GridCell, int]  # questions without a reply
    questions: int

    @property
    def prompts(self) -> tuple[str, ...]:
        """Strategies, in the order of the run."""
        return tuple(dict.fromkeys(cell.prompt for cell in self.draws))

    def select(self, prompt: str, **settings: object) -> tuple[GridCell, ...]:
        """Cells of a prompt with these settings, such as `examples=1`."""
        kept = {"prompt": prompt, **settings}
        return tuple(c for c in self.draws if all(getattr(c, name) == value for name, value in kept.items()))

    def mean(self, cells: Sequence[GridCell], figure: str) -> Estimate | None:
        """The plain mean of a figure over cells; None where one of them has none, or there is no cell."""
        found = average([self.draws[cell][figure] for cell in cells])
        return None if found is None else found.estimate

    def difference(self, pairs: Sequence[tuple[GridCell, GridCell]], figure: str) -> Estimate | None:
        """Mean of the differences of pairs of cells, paired by question; None where there is no pair."""
        first, second = (average([self.draws[pair[side]][figure] for pair in pairs]) for side in (0, 1))
        return None if first is None or second is None else (first - second).estimate


def grid_figures(run: GridRun, *, only: Collection[str] | None = None, seed: int = 0) -> GridFigures:
    """Figures of all finished cells, over all questions or those with these ids; `seed` is that of the intervals."""
    records = {cell: [r for r in run.records(cell) if only is None or r["id"] in only] for cell in run.cells}
    columns = [(cell, figure) for cell in records for figure in NAMES]
    parts = [[record["scores"][figure] for record in records[cell]] for cell, figure in columns]
    draws: dict[GridCell, dict[str, Draws | None]] = {cell: {} for cell in records}
    for (cell, figure), found in zip(columns, bootstrap(parts, name="questions", seed=seed), strict=True):
        draws[cell][figure] = found
    failed = {cell: sum(bool(record["error"]) for record in rows) for cell, rows in records.items()}
    return GridFigures(draws, failed, max(map(len, records.values()), default=0))


def page(run: GridRun, *, answers: bool = False, seed: int = 0) -> str:
    """A run as Markdown: what was asked of whom, then every table; see `tables`."""
    generator, questions = run.identity["generator"], run.identity["questions"]
    pool = run.questions.data.get("pool")
    searched = f", searched by {pool['name']} in the passages of all questions" if pool else ""
    about = (
        f"{generator['engine']}, prompt as {generator['layout']}, {generator['max_tokens']} tokens at most;"
        f" {questions['asked']} of {questions['answerable']} questions of {run.questions.path.name} of which the top"
        f" {run.questions.data['top']} passages hold an answer, seed {questions['seed']}{searched}; relevant by"
        f" {questions['relevance']}; {len(run.cells)} cells"
    )
    shown = map(markdown, tables(run, answers=answers, seed=seed))
    return printable("\n".join([f"# Self-interpretation: {run.identity['name']}\n\n{about}.\n", *shown]))


def tables(run: GridRun, *, answers: bool = False, seed: int = 0) -> list[ReportTable]:
    """Every table that the run has records for; `answers` adds those of the answers without explanations."""
    if not run.cells:
        return []
    figures = grid_figures(run, seed=seed)
    explained = [prompt for prompt in figures.prompts if ASKINGS[prompt].explains] if answers else []
    cells = {prompt: figures.select(prompt) for prompt in figures.prompts}
    found = [
        *(paper_table(figures, prompt) for prompt in figures.prompts),
        *(paper_table(figures, prompt, ALONE) for prompt in explained),
        *(means_table(figures, setting) for setting in SETTINGS),
        differences_table(figures) if len(figures.prompts) > 1 else None,
        types_table(run, seed),
        replies_table(figures),
        effects_table(run, cells, seed),
        orders_table(run, cells, seed),
        *(agreement_table(run, prompt, some, seed) for prompt, some in cells.items()),
    ]
    return [table for table in found if table is not None]


def paper_table(figures: GridFigures, prompt: str, prefix: str = WHOLE) -> ReportTable:
    """Table 2, 3 or 4: a block for each number of examples, the best of a block in bold; `prefix` says of what."""
    cells = sorted(figures.select(prompt), key=lambda cell: cell.examples)
    rows = []
    for cell in cells:
        block = [one for one in cells if one.examples == cell.examples]
        line = [str(cell.examples), str(cell.cutoff), cell.order]
        for name in MEASURES:
            values = {one: draws.value for one in block if (draws := figures.draws[one][prefix + name])}
            best = len(block) > 1 and cell in values and values[cell] == max(values.values()) > 0
            shown = share(figures.mean([cell], prefix + name))
            line += [f"**{shown}**" if best else shown, _number(published_mean([cell], name))]
        if prefix == WHOLE:
            line.append(share(figures.mean([cell], ALONE + MEASURES[0])))
        rows.append(tuple(line))
    number, scope = ASKINGS[prompt].table, " (the answer alone)" if prefix == ALONE else ""
    title = f"Prompt {prompt}{f', beside Table {number}' if number else ''}{scope}"
    alone = (ANSWER_ALONE,) if prefix == WHOLE else ()
    head = ("examples", "k", "order", *(text for name in SHORT.values() for text in (name, "paper")), *alone)
    notes = [f"{figures.questions} questions, bootstrap 95% intervals; the paper: 60 questions of QAMPARI, GPT-3.5"]
    if failed := [f"{cell.name} {count}" for cell in cells if (count := figures.failed[cell])]:
        notes.append(f"Failed, which counts as wrong: {', '.join(failed)}")
    return ReportTable(title, head, tuple(rows), tuple(notes))


def means_table(figures: GridFigures, setting: str) -> ReportTable:
    """Means over all cells that share a setting, beside those of the published figures of the same cells."""
    rows = []
    for prompt in figures.prompts:
        every = figures.select(prompt)
        values = dict.fromkeys(getattr(cell, setting) for cell in every)
        groups = [(str(value), figures.select(prompt, **{setting: value})) for value in values]
        for name, cells in groups + ([("all", every)] if len(groups) > 1 else []):
            pairs = ((share(figures.mean(cells, WHOLE + one)), _number(published_mean(cells, one))) for one in MAIN)
            alone = share(figures.mean(cells, ALONE + MEASURES[0]))
            rows.append((prompt, name, str(len(cells)), *(text for pair in pairs for text in pair), alone))
    named = (text for one in MAIN for text in (SHORT[one], "paper"))
    head = ("prompt", SETTINGS[setting], "cells", *named, ANSWER_ALONE)
    return ReportTable(
        f"Means by {SETTINGS[setting]}", head, tuple(rows), ("The published means are over the same cells",)
    )


def differences_table(figures: GridFigures) -> ReportTable:
    """RQ1 and RQ2: what asking changes, paired by question and setting."""
    rows = []
    for prompt in figures.prompts:
        cells = figures.select(prompt) if prompt != BASIC.name else ()
        paired = [(cell, basic) for cell in cells if (basic := replace(cell, prompt=BASIC.name)) in figures.draws]
        counts = sorted({cell.examples for cell in cells})
        groups = [(str(count), [pair for pair in paired if pair[0].examples == count]) for count in counts]
        for name, pairs in [*groups, ("all", paired)] if cells else ():
            line = [prompt, name]
            for figure in MEASURES:
                line.append(share(figures.difference(pairs, WHOLE + figure)))
                if figure in MAIN:
                    first, second = (published_mean([pair[side] for pair in pairs], figure) for side in (0, 1))
                    line.append(NONE if first is None or second is None else f"{first - second:+.3f}")
            line.append(share(figures.difference(pairs, ALONE + MEASURES[0])))
            rows.append(tuple(line))
    head = ("prompt", "examples", "answer recall", "paper", "citation P", "citation R", "citation F", "paper")
    note = "Paired by question and setting; of whole generations but for the last column"
    return ReportTable(f"Prompts against {BASIC.name}", (*head, ANSWER_ALONE), tuple(rows), (note,))


def types_table(run: GridRun, seed: int = 0) -> ReportTable:
    """Types of questions, the most frequent first, on average over all cells of a prompt."""
    ids: dict[str, list[str]] = {}
    for item in run.questions.items:
        ids.setdefault(run.questions.kinds[item.id], []).append(item.id)
    rows = []
    for kind in sorted(ids, key=lambda kind: (-len(ids[kind]), kind)):
        figures = grid_figures(run, only=ids[kind], seed=seed)
        for prompt in figures.prompts:
            shown = (share(figures.mean(figures.select(prompt), WHOLE + name)) for name in MEASURES)
            rows.append((kind, str(figures.questions), prompt, *shown))
    return ReportTable("Types of questions", ("type", "questions", "prompt", *SHORT.values()), tuple(rows))


def replies_table(figures: GridFigures) -> ReportTable:
    """What the replies were like: do they cite, cite what was not given, and explain?"""
    rows = []
    for prompt in figures.prompts:
        cells = figures.select(prompt)
        known = {name: [c for c in cells if figures.draws[c][name] is not None] for name in REPLIES}
        shown = (percent(figures.mean(some, name)) for name, some in known.items())
        rows.append((prompt, *shown, str(sum(figures.failed[cell] for cell in cells))))
    head = ("prompt", "cites", "citations of what was not given", "explanation found", "answer recall, words", "failed")
    note = "In percent; answer recall by words: an answer counts where it occurs as whole words, normalised"
    return ReportTable("Replies", head, tuple(rows), (note,))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
