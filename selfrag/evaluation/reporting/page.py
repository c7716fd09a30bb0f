"""The report: one HTML file that opens from disk, runs no script and asks no address for anything.

Tables with intervals, plots as parts of the file, where the figures come from, and items that unfold into the trace.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.evaluation.compare import Comparison, Table, compare
from selfrag.evaluation.compare_runs import read_runs
from selfrag.evaluation.reporting.case_html import KINDS, article, kinds
from selfrag.evaluation.reporting.case_reading import read_cases
from selfrag.evaluation.reporting.cases import CaseFile
from selfrag.evaluation.reporting.comparison_tables import about, grid, tables, title
from selfrag.evaluation.reporting.plots import draw_tables, spoken
from selfrag.evaluation.reporting.runs_html import provenance
from selfrag.evaluation.runner_manifest import read_manifest
from selfrag.pages.escaping import inert, isolated, visible
from selfrag.pages.markup import document, links, table
from selfrag.pages.style import picked_out, style
from selfrag.plotting import encoded

ITEMS = 50
"""Items of each file that are shown, unless the caller says otherwise."""
OWN_STYLE = """
.instruction, .gold { margin: .3rem 0 } .tree svg text { font: 11px sans-serif } .tree svg { max-width: none }
details.answer > summary { color: var(--ink) } img { max-width: 100%; height: auto; background: #ffffff }
article { content-visibility: auto; contain-intrinsic-size: auto 12rem }
main, header { max-width: 90rem } .results td { white-space: nowrap } article td, article th { text-align: left }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows.

    Attributes:
        comparison: all figures.
        manifests: name of a system to the manifest of its run.
        files: items of each file.
        seed: of the sample of items.
    """

    comparison: Comparison
    manifests: Mapping[str, Mapping[str, Any]]
    files: Sequence[CaseFile]
    seed: int = 0


def read_report(
    folders: Sequence[Path],
    *,
    against: str | None = None,
    only: Sequence[str] | None = None,
    items: int = ITEMS,
    data: Path | None = None,
    seed: int = 0,
) -> Report:
    """Read finished runs of the same items.

    Args:
        folders: run directories.
        against: name of the system that the others are compared with.
        only: names of the files to read; all by default.
        items: how many of each file are shown; failed ones come first, the others are a seeded sample.
        data: folder where the data files are now; by default where the runs read them.
        seed: of sample and intervals.

    Raises:
        UserError: a directory is no finished run, or the runs cannot be compared.
    """
    runs = read_runs(folders, only)
    comparison = compare(runs, against=against, seed=seed)
    manifests = {run.name: read_manifest(run.folder) for run in runs}
    return Report(comparison, manifests, read_cases(runs, items, data=data, seed=seed), seed)


def render(report: Report) -> str:
    """The page as text. The same report gives the same page.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    systems = list(report.manifests)
    named = ", ".join(systems[:4]) + (" ..." if len(systems) > 4 else "")
    sections = {f"table-{i}": inert(title(one), 80) for i, one in enumerate(tables(report.comparison))}
    body = (
        '<a class="skip" href="#items">Skip to the items</a>\n'
        f'<header><h1>Results</h1><p class="dim">{isolated(about(report.comparison), 300)}</p>'
        f"{links({**sections, 'runs': 'Runs', 'items': 'Items'})}</header>\n<main>\n"
        + "\n".join(_section(report.comparison, i, one) for i, one in enumerate(tables(report.comparison)))
        + f'\n<section><h2 id="runs">Runs</h2>{provenance(report.manifests)}</section>\n'
        f'<section><h2 id="items">Items</h2>{_choices(report.files)}\n{_items(report)}</section>\n</main>'
    )
    picks = [picked_out(f"show-{kind}", f"article:not(.is-{kind})") for kind in KINDS]
    return document(f"Results: {visible(named, 120)}", style(OWN_STYLE.strip(), *picks), body, pictures=True)


def _section(comparison: Comparison, number: int, shown: Table) -> str:
    header, *lines = grid(shown, comparison.reference)
    rows = [(isolated(name, 80), [inert(cell) for cell in cells]) for name, *cells in lines]
    notes = "".join(f'<p class="dim">{isolated(note, 400)}</p>' for note in shown.notes)
    return (
        f'<section class="results"><h2 id="table-{number}">{isolated(title(shown), 120)}</h2>'
        f"{table(f'Systems on {shown.name}', [inert(cell) for cell in header], rows)}{notes}{_picture(shown)}</section>"
    )


def _picture(shown: Table) -> str:
    """As a picture inside the file: what is in it can neither run nor be fetched."""
    if not any(row.figures[shown.metrics[0]] for row in shown.rows):
        return ""
    data = base64.b64encode(encoded(draw_tables([shown]), ".svg")).decode()
    return f'<p><img alt="{inert(spoken(shown), 2000)}" src="data:image/svg+xml;base64,{data}"></p>'


def _choices(files: Sequence[CaseFile]) -> str:
    counts = dict.fromkeys(KINDS, 0)
    for case in (case for file in files for case in file.cases):
        for kind in kinds(case):
            counts[kind] += 1
    if not counts["all"]:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="show" id="show-{kind}"{" checked" if kind == "all" else ""}>'
        f" {words} ({counts[kind]:,})</label>"
        for kind, words in KINDS.items()
    )
    return f"<fieldset><legend>Show</legend>{choices}</fieldset>"


def _items(report: Report) -> str:
    parts = []
    for number, file in enumerate(report.files):
        shown = f"{len(file.cases):,} of {file.items:,} items"
        how = "" if len(file.cases) == file.items else f", failed ones first, the others drawn with seed {report.seed}"
        note = "" if file.note is None or not file.cases else f'<p class="dim">{isolated(file.note, 400)}</p>'
        cases = "\n".join(article(case, f"item-{number}-{i}") for i, case in enumerate(file.cases))
        parts.append(f'<h3>{isolated(file.name, 120)}</h3><p class="dim">{shown}{how}</p>{note}{cases}')
    return "\n".join(parts)
