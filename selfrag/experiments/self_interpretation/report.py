"""A run as Markdown: the paper's three tables with the published figures beside yours, and every test that was run.

`published.csv` has the figures of the paper: GPT-3.5 (gpt-3.5-turbo-0125) on 60 questions of QAMPARI with dense
retrieval. All figures are resampled together by questions, and differences are paired.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from statistics import fmean

from selfrag.evaluation.comparison import Draws, average, estimate_of, paired_difference
from selfrag.evaluation.intervals import NONE
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.published import why_left_out
from selfrag.experiments.report_tables import ReportTable, markdown, percent, share
from selfrag.experiments.self_interpretation.agreement import agreement_table
from selfrag.experiments.self_interpretation.faithfulness import (
    effects_table,
    orders_table,
)
from selfrag.experiments.self_interpretation.grid import GridCell
from selfrag.experiments.self_interpretation.prompts import ASKINGS, BASIC
from selfrag.experiments.self_interpretation.replies import (
    ALONE,
    MEASURES,
    NAMES,
    WHOLE,
)
from selfrag.experiments.self_interpretation.run import GridRun
from selfrag.interface import Estimate, bootstrap, count_of, printable

SHORT = dict(
    zip(
        MEASURES,
        ("answer recall", "citation P", "citation R", "citation F"),
        strict=True,
    )
)
MAIN = (MEASURES[0], MEASURES[-1])
REPLIES = ("cites", "wrong_citations", "explains", "answer_recall_words")
ANSWER_ALONE = "answer recall, answer alone"
PAPER = "paper"
"""Head of the columns of published figures."""
SAME_CELLS = "The published means are over the same cells"
SETTINGS = {"examples": "examples", "cutoff": "k", "order": "order"}


@cache
def published() -> Mapping[GridCell, Mapping[str, float]]:
    """Return the cell of the grid to the figures that were published for it."""
    with files(__package__).joinpath("published.csv").open(encoding="utf-8") as stream:
        figures = {}
        for row in csv.DictReader(stream):
            values = {name: float(row[name]) for name in MEASURES}
            figures[GridCell.from_dict(row)] = values
        return figures


def published_mean(cells: Sequence[GridCell], figure: str) -> float | None:
    """Return the mean of a published figure over cells; None where one of them was not published, or there is none."""
    known = [published()[cell][figure] for cell in cells if cell in published()]
    return fmean(known) if known and len(known) == len(cells) else None


@dataclass(frozen=True, slots=True)
class GridFigures:
    """Figures of the finished cells of a run."""

    # in each resampling; None where no question counts
    draws: Mapping[GridCell, Mapping[str, Draws | None]]
    failed: Mapping[GridCell, int]  # questions without a reply
    questions: int

    @property
    def prompts(self) -> tuple[str, ...]:
        """Return the strategies, in the order of the run."""
        return tuple(dict.fromkeys(cell.prompt for cell in self.draws))

    def select(self, prompt: str, **settings: object) -> tuple[GridCell, ...]:
        """Return the cells of a prompt with these settings, such as `examples=1`."""
        settings["prompt"] = prompt
        return tuple(
            cell for cell in self.draws if settings.items() <= asdict(cell).items()
        )

    def mean(self, cells: Sequence[GridCell], figure: str) -> Estimate | None:
        """Return the plain mean of a figure over cells; None where one of them has none, or there is no cell."""
        return estimate_of(average([self.draws[cell][figure] for cell in cells]))

    def difference(
        self, pairs: Sequence[tuple[GridCell, GridCell]], figure: str
    ) -> Estimate | None:
        """Return the mean of the differences of pairs of cells, paired by question; None where there is no pair."""
        first = average([self.draws[cell][figure] for cell, _ in pairs])
        second = average([self.draws[cell][figure] for _, cell in pairs])
        return paired_difference(first, second)


def grid_figures(
    run: GridRun, *, only: Collection[str] | None = None, seed: int = 0
) -> GridFigures:
    """Return the figures of all finished cells, over all questions or those with these ids."""
    failed: dict[GridCell, int] = {}
    columns: dict[tuple[GridCell, str], list[Part | None]] = {}
    questions = 0
    for cell in run.cells:
        records = run.records(cell)
        if only is not None:
            records = [record for record in records if record["id"] in only]
        failed[cell] = sum(bool(record["error"]) for record in records)
        questions = max(questions, len(records))
        for figure in NAMES:
            columns[cell, figure] = [record["scores"][figure] for record in records]
    draws: dict[GridCell, dict[str, Draws | None]] = {cell: {} for cell in failed}
    resampled = bootstrap(list(columns.values()), name="questions", seed=seed)
    for (cell, figure), figure_draws in zip(columns, resampled, strict=True):
        draws[cell][figure] = figure_draws
    return GridFigures(draws, failed, questions)


def page(run: GridRun, *, answers: bool = False, seed: int = 0) -> str:
    """Return a run as Markdown: what was asked of whom, then every table; see `tables`."""
    generator, questions = run.identity["generator"], run.identity["questions"]
    pool = run.questions.data.get("pool")
    searched = ""
    if pool:
        searched = f", searched by {pool['name']} in the passages of all questions"
    about = (
        f"{generator['engine']}, prompt as {generator['layout']},"
        f" {count_of(generator['max_tokens'], 'tokens')} at most;"
        f" {questions['asked']} of {count_of(questions['answerable'], 'questions')} of"
        f" {run.questions.path.name} of which the top"
        f" {count_of(run.questions.data['top'], 'passages')} hold an answer, seed"
        f" {questions['seed']}{searched}; relevant by"
        f" {questions['relevance']}; {count_of(len(run.cells), 'cells')}"
    )
    title = f"# Self-interpretation: {run.identity['name']}"
    shown = map(markdown, tables(run, answers=answers, seed=seed))
    return printable("\n".join([f"{title}\n\n{about}.\n", *shown]))


def tables(run: GridRun, *, answers: bool = False, seed: int = 0) -> list[ReportTable]:
    """Return every table that the run has records for; `answers` adds those of the answers without explanations."""
    if not run.cells:
        return []
    figures = grid_figures(run, seed=seed)
    cells = {prompt: figures.select(prompt) for prompt in figures.prompts}
    made: list[ReportTable | None] = [paper_table(figures, prompt) for prompt in cells]
    if answers:
        explained = [prompt for prompt in cells if ASKINGS[prompt].explains]
        made += [paper_table(figures, prompt, ALONE) for prompt in explained]
    made += [means_table(figures, setting) for setting in SETTINGS]
    if len(cells) > 1:
        made.append(differences_table(figures))
    made += [types_table(run, seed), replies_table(figures)]
    made += [effects_table(run, cells, seed), orders_table(run, cells, seed)]
    for prompt, of_prompt in cells.items():
        made.append(agreement_table(run, prompt, of_prompt, seed))
    preset = str(run.questions.data.get("preset", "")).partition("/")[0]
    count, metric = len(run.questions.items), "answer recall and citations"
    left_out = why_left_out("interpret", preset, count, metric)
    shown = [table for table in made if table is not None]
    if left_out:
        shown = list(map(without_paper, shown))
    note = left_out or "The paper: 60 questions of QAMPARI, GPT-3.5"
    shown[0] = replace(shown[0], notes=(*shown[0].notes, note))
    return shown


def without_paper(table: ReportTable) -> ReportTable:
    """Return the table without the columns of published figures."""
    kept = [place for place, name in enumerate(table.head) if name != PAPER]
    head = tuple(table.head[place] for place in kept)
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    notes = tuple(note for note in table.notes if note != SAME_CELLS)
    title = re.sub(r", beside Table \d", "", table.title)
    return replace(table, title=title, head=head, rows=rows, notes=notes)


def paper_table(figures: GridFigures, prompt: str, prefix: str = WHOLE) -> ReportTable:
    """Return Table 2, 3 or 4: a block for each number of examples, the best of a block in bold."""
    cells = sorted(figures.select(prompt), key=lambda cell: cell.examples)
    rows = []
    for cell in cells:
        block = [member for member in cells if member.examples == cell.examples]
        line = [str(cell.examples), str(cell.cutoff), cell.order]
        for name in MEASURES:
            figure = prefix + name
            of_block = [figures.draws[member][figure] for member in block]
            values = [draws.value for draws in of_block if draws]
            draws = figures.draws[cell][figure]
            shown = share(figures.mean([cell], figure))
            if len(block) > 1 and draws is not None and draws.value == max(values) > 0:
                shown = f"**{shown}**"
            line += [shown, _number(published_mean([cell], name))]
        if prefix == WHOLE:
            line.append(share(figures.mean([cell], ALONE + MEASURES[0])))
        rows.append(tuple(line))
    title = f"Prompt {prompt}"
    if number := ASKINGS[prompt].table:
        title += f", beside Table {number}"
    head = ["examples", "k", "order"]
    for name in SHORT.values():
        head += [name, PAPER]
    if prefix == WHOLE:
        head.append(ANSWER_ALONE)
    else:
        title += " (the answer alone)"
    notes = [f"{count_of(figures.questions, 'questions')}, bootstrap 95% intervals"]
    failed = [
        f"{cell.name} {figures.failed[cell]}" for cell in cells if figures.failed[cell]
    ]
    if failed:
        notes.append(f"Failed, which counts as wrong: {', '.join(failed)}")
    return ReportTable(title, tuple(head), tuple(rows), tuple(notes))


def means_table(figures: GridFigures, setting: str) -> ReportTable:
    """Return means over all cells that share a setting, beside those of the published figures of the same cells."""
    rows = []
    for prompt in figures.prompts:
        every = figures.select(prompt)
        groups: dict[str, Sequence[GridCell]] = {}
        for value in dict.fromkeys(getattr(cell, setting) for cell in every):
            groups[str(value)] = figures.select(prompt, **{setting: value})
        if len(groups) > 1:
            groups["all"] = every
        for name, cells in groups.items():
            line = [prompt, name, str(len(cells))]
            for measure in MAIN:
                line.append(share(figures.mean(cells, WHOLE + measure)))
                line.append(_number(published_mean(cells, measure)))
            rows.append((*line, share(figures.mean(cells, ALONE + MEASURES[0]))))
    recall, citations = (SHORT[measure] for measure in MAIN)
    head = (
        "prompt",
        SETTINGS[setting],
        "cells",
        recall,
        PAPER,
        citations,
        PAPER,
        ANSWER_ALONE,
    )
    return ReportTable(
        f"Means by {SETTINGS[setting]}",
        head,
        tuple(rows),
        (SAME_CELLS,),
    )


def differences_table(figures: GridFigures) -> ReportTable:
    """Return what asking changes (RQ1 and RQ2), paired by question and setting."""
    rows = []
    for prompt in figures.prompts:
        if prompt == BASIC.name:
            continue
        # Pairs of a cell and the same cell under the basic prompt: by examples, and all in the order of the run.
        groups: dict[str, list[tuple[GridCell, GridCell]]] = {}
        every: list[tuple[GridCell, GridCell]] = []
        cells = figures.select(prompt)
        for examples in sorted({cell.examples for cell in cells}):
            groups[str(examples)] = []
        for cell in cells:
            basic = replace(cell, prompt=BASIC.name)
            if basic in figures.draws:
                groups[str(cell.examples)].append((cell, basic))
                every.append((cell, basic))
        for name, pairs in {**groups, "all": every}.items():
            line = [prompt, name]
            for figure in MEASURES:
                line.append(share(figures.difference(pairs, WHOLE + figure)))
                if figure in MAIN:
                    first = published_mean([cell for cell, _ in pairs], figure)
                    second = published_mean([basic for _, basic in pairs], figure)
                    shown = NONE
                    if first is not None and second is not None:
                        shown = f"{first - second:+.3f}"
                    line.append(shown)
            line.append(share(figures.difference(pairs, ALONE + MEASURES[0])))
            rows.append(tuple(line))
    head = (
        "prompt",
        "examples",
        "answer recall",
        PAPER,
        "citation P",
        "citation R",
        "citation F",
        PAPER,
    )
    note = (
        "Paired by question and setting; of whole generations but for the last column"
    )
    return ReportTable(
        f"Prompts against {BASIC.name}", (*head, ANSWER_ALONE), tuple(rows), (note,)
    )


def types_table(run: GridRun, seed: int = 0) -> ReportTable:
    """Return types of questions, the most frequent first, on average over all cells of a prompt."""
    ids: dict[str, list[str]] = {}
    for item in run.questions.items:
        ids.setdefault(run.questions.kinds[item.id], []).append(item.id)
    rows = []
    for kind in sorted(ids, key=lambda kind: (-len(ids[kind]), kind)):
        figures = grid_figures(run, only=ids[kind], seed=seed)
        for prompt in figures.prompts:
            shown = (
                share(figures.mean(figures.select(prompt), WHOLE + name))
                for name in MEASURES
            )
            rows.append((kind, str(figures.questions), prompt, *shown))
    return ReportTable(
        "Types of questions",
        ("type", "questions", "prompt", *SHORT.values()),
        tuple(rows),
    )


def replies_table(figures: GridFigures) -> ReportTable:
    """Return what the replies were like: do they cite, cite what was not given, and explain?"""
    rows = []
    for prompt in figures.prompts:
        cells = figures.select(prompt)
        line = [prompt]
        for name in REPLIES:
            known = [cell for cell in cells if figures.draws[cell][name] is not None]
            line.append(percent(figures.mean(known, name)))
        rows.append((*line, str(sum(figures.failed[cell] for cell in cells))))
    head = (
        "prompt",
        "cites",
        "citations of what was not given",
        "explanation found",
        "answer recall, words",
        "failed",
    )
    note = "In percent; answer recall by words: an answer counts where it occurs as whole words, normalised"
    return ReportTable("Replies", head, tuple(rows), (note,))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
