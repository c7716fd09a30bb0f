"""`selfrag eval report`, `export`, `annotate` and `tasks`: finished runs compared, exported, judged; tasks listed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from selfrag.cli.options import DataFolder, show_markdown
from selfrag.errors import UserError
from selfrag.untrusted import printable


def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or a folder of them")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="file to write, by its ending: .html a page with every answer's trace, .md or .csv the tables,"
            " .png, .svg or .pdf the plots; repeatable",
        ),
    ] = None,
    against: Annotated[str | None, typer.Option(help="system to compare the others with, paired")] = None,
    only: Annotated[list[str] | None, typer.Option(help="compare on this file only; repeatable")] = None,
    items: Annotated[int, typer.Option(min=0, help="items of each file on the page, failed ones first")] = 50,
    data: DataFolder = None,
    seed: Annotated[int, typer.Option(help="seed of the intervals and of the sample of items")] = 0,
) -> None:
    """Compare finished runs of the same items: figures with intervals, paired differences, costs, every answer."""
    from rich.console import Console

    from selfrag.evaluation.comparison import run_folders
    from selfrag.evaluation.report import check_ending, read_report, write
    from selfrag.evaluation.tables import Terminal

    files = [check_ending(one) for one in out or ()]
    page = any(one.suffix == ".html" for one in files)
    folders, shown = run_folders(runs), items if page else 0
    found = read_report(folders, against=against, only=only, items=shown, data=data, seed=seed)
    console = Console()
    console.print(Terminal(found.comparison))
    for one in files:
        sys.stdout.write(printable(f"written: {write(found, one)}\n"))


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run folders such as RUNS/selfrag-adaptive, or a folder of them", metavar="RUN..."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of the exported files")],
    to: Annotated[
        Literal["inspect", "lm-eval"],
        typer.Option(help="inspect for inspect-ai logs, lm-eval for its results and samples"),
    ] = "inspect",
    only: Annotated[list[str] | None, typer.Option(help="export this file only; repeatable")] = None,
    data: DataFolder = None,
    seed: Annotated[int, typer.Option(help="seed of the standard errors")] = 0,
) -> None:
    """Write finished runs in the format of another evaluation tool."""
    from selfrag.evaluation.comparison import read_run, run_folders
    from selfrag.evaluation.exporting import read_source, write_inspect, write_lm_eval

    for folder in run_folders(runs):
        sources = [read_source(folder, name, data, seed=seed) for name in read_run(folder, only).files]
        written = [write_lm_eval(sources, out)] if to == "lm-eval" else [write_inspect(one, out) for one in sources]
        typer.echo(printable("\n".join(map(str, written))))


def tasks(
    name: Annotated[str | None, typer.Argument(help="show this task in full: wordings, budgets, settings")] = None,
) -> None:
    """List the published tasks and what their files look like, or show one task in full."""
    from rich.console import Console
    from rich.text import Text

    from selfrag.evaluation.presets import in_full, overview, preset

    if name is None:
        Console().print(overview())
    else:
        Console().print(Text(in_full(preset(name))), soft_wrap=True)


def systems() -> None:
    """List the systems of `selfrag eval run --system`."""
    from rich.console import Console
    from rich.table import Table

    from selfrag.evaluation.systems import known_systems

    table = Table("system", "what it is", box=None)
    for row in known_systems().items():
        table.add_row(*row)
    Console().print(table)


def show(runs: Sequence[Path], only: Sequence[str] | None = None, against: str | None = None, seed: int = 0) -> None:
    """Print the comparison of runs, as commands on runs do at their end; arguments as `read_runs` and `compare`."""
    from rich.console import Console

    from selfrag.evaluation.comparison import compare, read_runs
    from selfrag.evaluation.tables import Terminal

    Console().print(Terminal(compare(read_runs(runs, only), against=against, seed=seed)))


def annotate(
    run: Annotated[Path, typer.Argument(help="folder of a run that kept traces (--traces)", metavar="RUN")],
    sample: Annotated[int, typer.Option(min=1, help="answers of each file")] = 50,
    only: Annotated[list[str] | None, typer.Option(help="judge this file only; repeatable")] = None,
    seed: Annotated[int, typer.Option(help="seed of the sample and of the intervals")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write the form here, one HTML file")] = None,
    read: Annotated[list[Path] | None, typer.Option(help="file that the form saved; repeatable, one a person")] = None,
) -> None:
    """Have people judge answers: plausible, supported, IsRel and IsSup right (C.2 of the Self-RAG paper)."""
    from selfrag.evaluation.annotation import FIGURES, form, read_forms
    from selfrag.experiments.report_tables import Table, markdown, percent, share

    if (out is None) == (not read):
        raise UserError("give --out FORM.html to write the form, or --read FILE for each person who filled it in")
    if out is not None:
        from retrieval.atomic import write_text

        write_text(out, form(run, sample, seed=seed, only=only or ()))
        typer.echo(printable(f"{out}: open it in a browser; then: selfrag eval annotate {run} --read FILE.json"))
        return
    rows = [
        (
            *(one.file, FIGURES[one.name], str(one.share.n), percent(one.share)),
            *(percent(one.agreement), share(one.kappa)),
        )
        for one in read_forms(run, read or [], seed=seed)
    ]
    head = ("file", "people say", "answers", "%", "agreement, %", "kappa")
    notes = (
        f"{len(read or [])} people; intervals resample answers",
        "Supported and plausible: of answers with a segment predicted relevant and at least partially supported",
    )
    show_markdown(markdown(Table("Human evaluation", head, tuple(rows), notes)))
