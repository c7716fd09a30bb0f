"""A run as tables: grid, means, differences, types, and the tests that were run. Computes no figure itself."""

from __future__ import annotations

from selfrag.experiments.interpretation.agreement import agreements
from selfrag.experiments.interpretation.asking import ASKINGS
from selfrag.experiments.interpretation.effects import effects, foretold
from selfrag.experiments.interpretation.figures import by_kind, grid_figures
from selfrag.experiments.interpretation.reading import GridRun
from selfrag.experiments.interpretation.tables import (
    SETTINGS,
    differences_table,
    kinds_table,
    means_table,
    paper_table,
    replies_table,
)
from selfrag.experiments.interpretation.verdict_tables import agreement_table, effects_table, foretold_table
from selfrag.experiments.report_tables import Table, markdown
from selfrag.untrusted import printable


def page(run: GridRun, *, whole: bool = False, seed: int = 0) -> str:
    """A run as Markdown: what was asked of whom, then every table; see `tables`."""
    generator, questions = run.identity["generator"], run.identity["questions"]
    about = (
        f"{generator['engine']}, prompt as {generator['layout']}, {generator['max_tokens']} tokens at most;"
        f" {questions['asked']} of {questions['answerable']} questions of {run.job.path.name} of which the top"
        f" {run.identity['data']['top']} passages hold an answer, seed {questions['seed']}; relevant by"
        f" {questions['relevance']}; {len(run.cells)} cells"
    )
    parts = [f"# Self-interpretation: {run.name}\n\n{about}.\n", *map(markdown, tables(run, whole=whole, seed=seed))]
    return printable("\n".join(parts))


def tables(run: GridRun, *, whole: bool = False, seed: int = 0) -> list[Table]:
    """Every table that the run has records for.

    Args:
        run: read back.
        whole: the paper's tables also with the whole generation scored, explanation included.
        seed: of the intervals.
    """
    if not run.cells:
        return []
    figures = grid_figures(run, seed=seed)
    found = [paper_table(figures, prompt) for prompt in figures.prompts]
    if whole:
        found += [paper_table(figures, prompt, whole=True) for prompt in figures.prompts if ASKINGS[prompt].explains]
    found += [means_table(figures, setting) for setting in SETTINGS]
    if len(figures.prompts) > 1:
        found.append(differences_table(figures))
    found += [kinds_table(by_kind(run, seed=seed)), replies_table(figures)]
    return found + _tests(run, figures.prompts, seed)


def _tests(run: GridRun, prompts: tuple[str, ...], seed: int) -> list[Table]:
    found = []
    cells = {prompt: [cell for cell in run.cells if cell.prompt == prompt] for prompt in prompts}
    changed = {prompt: some for prompt in prompts if (some := effects(run, cells[prompt], seed=seed))}
    if changed:
        found.append(effects_table(changed))
    said = {prompt: one for prompt in prompts if (one := foretold(run, cells[prompt], seed=seed)) is not None}
    if said:
        found.append(foretold_table(said))
    for prompt in prompts:
        if judged := agreements(run, cells[prompt], seed=seed):
            table = agreement_table(judged)
            found.append(Table(f"{table.title}, prompt {prompt}", table.head, table.rows, table.notes))
    return found
