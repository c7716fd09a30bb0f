"""`selfrag eval annotate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.interface import (
    CommandResult,
    Replaced,
    UserError,
    show_markdown,
)


def annotate(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    *,
    sample: Annotated[int, typer.Option(min=1)] = 50,
    only: list[str] | None = None,
    seed: int = 0,
    out: Annotated[Path | None, Replaced(("tasks.json",))] = None,
    read: Path | None = None,
) -> CommandResult:
    """Have people judge answers: plausible, supported, IsRel and IsSup right (C.2 of the Self-RAG paper).

    Args:
        run: folder of a run that kept traces (--traces)
        sample: answers of each file
        only: judge this file only; repeatable
        seed: seed of the sample and of the intervals
        out: write tasks.json and interface.xml for Label Studio here
        read: JSON export of Label Studio
    """
    from selfrag.extensions.annotation.label_studio import (
        FIGURES,
        read_export,
        write_tasks,
    )
    from selfrag.interface import bracketed, markdown_section

    if (out is None) == (read is None):
        raise UserError(
            "give --out FOLDER to write the tasks, or --read EXPORT.json to read what people said"
        )
    if out is not None:
        tasks, interface = write_tasks(run, out, sample, seed=seed, only=only or ())
        line = (
            f"{tasks}: import it into a project of Label Studio with the interface {interface};"
            f" then: selfrag eval annotate {run} --read EXPORT.json"
        )
        return CommandResult({"tasks": tasks, "interface": interface}, line)
    assert read is not None  # noqa: S101 - one of the two
    figures, people = read_export(run, read, seed=seed)
    rows = []
    for figure in figures:
        name, shares = FIGURES[figure.name], (figure.share, figure.agreement)
        cells = [*map(bracketed, shares), bracketed(figure.kappa, scale=1)]
        rows.append((figure.file, name, str(figure.share.n), *cells))
    head = ("file", "people say", "answers", "%", "agreement, %", "kappa")
    notes = (
        f"{people} people; intervals resample answers",
        "Supported and plausible: of answers with a segment predicted relevant and at least partially supported",
    )
    text = markdown_section("Human evaluation", head, rows, notes)
    return CommandResult(figures, lambda: show_markdown(text))
