"""`selfrag eval intrinsics` and `selfrag eval rows`: the tables of the paper on intrinsics, and rows to measure on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from selfrag.cli.options import quiet
from selfrag.experiments.intrinsics.settings import MeasurementSettings
from selfrag.interface import (
    CommandResult,
    Fields,
    FieldValues,
    Replaced,
    check_free,
    show_markdown,
)


def rows(
    sources: Annotated[list[str], typer.Argument(metavar="FORMAT=FILE")],
    *,
    ctx: typer.Context,
    out: Annotated[Path, Replaced(())],
    part: Literal["dev", "train"] = "dev",
    judge: Annotated[str | None, typer.Option("--load-judge")] = None,
    check: str | None = None,
) -> CommandResult:
    """Make rows of the intrinsics from the public files of the paper's benchmarks, or from answers of a run.

    Args:
        sources: FORMAT=FILE, repeatable; formats: squad2, mtrag, mtrag_rewrite, ragtruth, answers, mmlu, choices, run,
            alce, longbench_cite
        out: folder of the rows, for `selfrag eval intrinsics --data`
        part: rows to measure on, or to train on
        judge: judge of entailment that labels the sentences of answers, such as nli:MODEL
        check: leave out rows of answerability whose label this chat model, MODEL@URL, does not give
    """
    from selfrag.experiments.intrinsics.benchmarks import (
        parse,
        rows_files,
        write_rows,
    )
    from selfrag.experiments.intrinsics.subjects import prompted
    from selfrag.interface import open_judge

    parsed = list(map(parse, sources))
    check_free(ctx, rows_files(parsed, out, part).values())
    lines = write_rows(
        parsed,
        out,
        part,
        judge=None if judge is None else open_judge(judge),
        checker=None if check is None else prompted(check),
    )
    return CommandResult({"folder": out, "notes": lines}, "\n".join(lines))


def intrinsics(
    *,
    data: Path,
    measured: Annotated[
        FieldValues,
        Fields(
            MeasurementSettings,
            "What is measured",
            *(
                "model",
                "adapters",
                "corpus",
                "parts=--only",
                "engine",
                "limit",
                "flows",
            ),
            *(
                "shots",
                "judges=--by",
                "dialect",
                "judge=--load-judge",
                "grader",
                "grader_words",
            ),
            *("rival", "index", "answers", "seed"),
        ),
    ],
    out: Annotated[Path | None, Replaced(("figures.json",))] = None,
) -> CommandResult:
    """Measure the intrinsics of a model: the paper's tables with baselines and the published figures.

    Args:
        data: folder with the rows of the intrinsics
        out: folder of the report, figures, items and diagram
    """
    quiet()
    from selfrag.experiments.intrinsics.run import evaluate
    from selfrag.experiments.report_tables import markdown

    sections = evaluate(MeasurementSettings(data, **measured), out)
    tables = [table for section in sections for table in section.tables]

    def show() -> None:
        for table in tables:
            show_markdown(f"{markdown(table)}\n")

    failures = [failure for section in sections for failure in section.failures]
    return CommandResult(tables, show, failures=failures)
