"""The tables of the paper with one's own figures and the published ones beside them. Formats; computes no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfrag.evaluation.intervals import NONE
from selfrag.experiments.interpretation.asking import ASKINGS, BASIC
from selfrag.experiments.interpretation.figures import GridFigures
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.published import PUBLISHED, published_mean
from selfrag.experiments.interpretation.scoring import MEASURES
from selfrag.experiments.report_tables import Table, percent, share

SHORT = {
    "answer_recall": "answer recall",
    "citation_precision": "citation P",
    "citation_recall": "citation R",
    "citation_f": "citation F",
}
PAPER = "paper"
ALL = "all"
SETTINGS = {"examples": "examples", "cutoff": "k", "order": "order"}


def paper_table(figures: GridFigures, prompt: str, *, whole: bool = False) -> Table:
    """Table 2, 3 or 4: a block for each number of examples, the best of a block in bold.

    Args:
        figures: of a run.
        prompt: name of the strategy.
        whole: figures of the whole generation, explanation included.
    """
    prefix = "whole_" if whole else ""
    cells = sorted(figures.select(prompt), key=lambda c: c.examples)
    rows = []
    for cell in cells:
        block = [one for one in cells if one.examples == cell.examples]
        line = [str(cell.examples), str(cell.cutoff), cell.order]
        for place, name in enumerate(MEASURES):
            shown = share(figures.of(cell, prefix + name))
            best = len(block) > 1 and _is_best(figures, cell, block, prefix + name)
            line += [f"**{shown}**" if best else shown, _published(cell, place)]
        rows.append(tuple(line))
    number = ASKINGS[prompt].table
    beside = f", beside Table {number}" if number else ""
    scope = " (whole generation)" if whole else ""
    head = ("examples", "k", "order", *(text for name in MEASURES for text in (SHORT[name], PAPER)))
    notes = [f"{figures.questions} questions, bootstrap 95% intervals; the paper: 60 questions of QAMPARI, GPT-3.5"]
    if failed := [f"{cell.name} {count}" for cell in cells if (count := figures.failed[cell])]:
        notes.append(f"Failed, which counts as wrong: {', '.join(failed)}")
    return Table(f"Prompt {prompt}{beside}{scope}", head, tuple(rows), tuple(notes))


def means_table(figures: GridFigures, setting: str) -> Table:
    """Means over all cells that share a setting, beside those of the published figures of the same cells.

    Args:
        figures: of a run.
        setting: `examples`, `cutoff` or `order`.
    """
    rows = []
    for prompt in figures.prompts:
        values = dict.fromkeys(getattr(cell, setting) for cell in figures.select(prompt))
        groups = [(str(value), figures.select(prompt, **{setting: value})) for value in values]
        for name, cells in (*groups, *([(ALL, figures.select(prompt))] if len(groups) > 1 else [])):
            line = [prompt, name, str(len(cells))]
            for figure in ("answer_recall", "citation_f"):
                found = figures.mean(cells, figure)
                line += [share(None if found is None else found.estimate), _number(published_mean(cells, figure))]
            rows.append(tuple(line))
    shown = (text for figure in ("answer_recall", "citation_f") for text in (SHORT[figure], PAPER))
    note = "The published means are over the same cells"
    return Table(f"Means by {SETTINGS[setting]}", ("prompt", SETTINGS[setting], "cells", *shown), tuple(rows), (note,))


def differences_table(figures: GridFigures, against: str = BASIC.name) -> Table:
    """RQ1 and RQ2: what asking changes, paired by question and setting."""
    rows = []
    for prompt in figures.prompts:
        if prompt == against:
            continue
        examples = sorted({cell.examples for cell in figures.select(prompt)})
        groups = [(str(count), figures.pairs(prompt, against, examples=count)) for count in examples]
        for name, pairs in (*groups, (ALL, figures.pairs(prompt, against))):
            line = [prompt, name]
            for figure in (*MEASURES, "whole_answer_recall"):
                line.append(share(figures.difference(pairs, figure)))
                if figure in ("answer_recall", "citation_f"):
                    line.append(_number(_published_difference(pairs, figure), "+.3f"))
            rows.append(tuple(line))
    head = ("prompt", "examples", "answer recall", PAPER, "citation P", "citation R", "citation F", PAPER)
    note = "Paired by question and setting; the last column scores the whole generation, explanation included"
    return Table(f"Prompts against {against}", (*head, "answer recall, whole"), tuple(rows), (note,))


def kinds_table(kinds: Mapping[str, GridFigures]) -> Table:
    """Types of questions, on average over all cells of a prompt."""
    prompts = tuple(dict.fromkeys(prompt for figures in kinds.values() for prompt in figures.prompts))
    rows = []
    for kind, figures in kinds.items():
        for prompt in prompts:
            cells = figures.select(prompt)
            found = [figures.mean(cells, name) for name in MEASURES]
            shown = (share(None if one is None else one.estimate) for one in found)
            rows.append((kind, str(figures.questions), prompt, *shown))
    return Table("Types of questions", ("type", "questions", "prompt", *SHORT.values()), tuple(rows))


def replies_table(figures: GridFigures) -> Table:
    """What the replies were like: do they cite, cite what was not given, and explain?"""
    rows = []
    for prompt in figures.prompts:
        cells = figures.select(prompt)
        line = [prompt]
        for name in ("cites", "wrong_citations", "explains", "answer_recall_words"):
            found = figures.mean([c for c in cells if figures.draws[c][name] is not None], name)
            line.append(percent(None if found is None else found.estimate))
        rows.append((*line, str(sum(figures.failed[cell] for cell in cells))))
    head = ("prompt", "cites", "citations of what was not given", "explanation found", "answer recall, words", "failed")
    note = "In percent; answer recall by words: an answer counts where it occurs as whole words, normalised"
    return Table("Replies", head, tuple(rows), (note,))


def _is_best(figures: GridFigures, cell: Cell, block: Sequence[Cell], name: str) -> bool:
    values = {one: found.value for one in block if (found := figures.of(one, name)) is not None}
    return cell in values and values[cell] == max(values.values()) and values[cell] > 0


def _published(cell: Cell, place: int) -> str:
    return f"{PUBLISHED[cell][place]:.3f}" if cell in PUBLISHED else NONE


def _published_difference(pairs: Sequence[tuple[Cell, Cell]], figure: str) -> float | None:
    first = published_mean([mine for mine, _ in pairs], figure)
    second = published_mean([other for _, other in pairs], figure)
    return None if first is None or second is None else first - second


def _number(value: float | None, form: str = ".3f") -> str:
    return NONE if value is None else format(value, form)
