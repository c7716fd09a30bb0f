"""`selfrag eval intrinsics` and `selfrag eval rows`: the tables of the paper on intrinsics, and rows to measure on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from selfrag.cli.options import quiet, show_markdown
from selfrag.cli.results import CommandResult


def rows(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="FORMAT=FILE, repeatable; formats: squad2, mtrag, mtrag_rewrite, ragtruth, answers, mmlu, choices,"
            " run, alce, longbench_cite",
            metavar="FORMAT=FILE",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="folder of the rows, for `selfrag eval intrinsics --data`",
        ),
    ],
    part: Annotated[
        Literal["dev", "train"], typer.Option(help="rows to measure on, or to train on")
    ] = "dev",
    judge: Annotated[
        str | None,
        typer.Option(
            help="judge of entailment that labels the sentences of answers, such as nli:MODEL"
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="leave out rows of answerability whose label this chat model, MODEL@URL, does not give"
        ),
    ] = None,
) -> CommandResult:
    """Make rows of the intrinsics from the public files of the paper's benchmarks, or from answers of a run."""
    from selfrag.experiments.intrinsics.benchmarks import Labelling, parse, write_rows
    from selfrag.experiments.intrinsics.subjects import prompted
    from selfrag.intrinsics.named import open_judge

    label = Labelling(
        None if judge is None else open_judge(judge),
        None if check is None else prompted(check),
    )
    parsed = list(map(parse, sources))
    lines = list(write_rows(parsed, out, part, label))
    return CommandResult({"folder": out, "notes": lines}, "\n".join(lines))


def intrinsics(
    data: Annotated[Path, typer.Option(help="folder with the rows of the intrinsics")],
    model: Annotated[
        str,
        typer.Option(
            help="the adapters' base: demo, a folder with a checkpoint, or a hub name"
        ),
    ] = "demo",
    adapters: Annotated[
        Path | None,
        typer.Option(
            help="folder with a subfolder for each adapter; by default the demo's adapters"
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="for the recall of rewrites and for flows: folder with corpus, queries and qrels, or passages alone",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="measure this intrinsic only; repeatable; flows are off by default"
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="vllm or transformers; by default the best one installed"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="most rows of each intrinsic")
    ] = None,
    flows: Annotated[
        int, typer.Option(min=2, help="number of questions for flows")
    ] = 60,
    shots: Annotated[
        int,
        typer.Option(min=0, help="examples of the prompted baseline; 0 leaves it out"),
    ] = 3,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="measure this judge only: tokens, combined, adapter, prompt, overlap, bm25; repeatable; by default all"
        ),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option(
            help="prompts of the adapters, such as granite-3.2; needed for published ones"
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="judge of entailment for citations and answers, such as true or nli:MODEL"
        ),
    ] = None,
    grader: Annotated[
        str | None,
        typer.Option(
            help="chat model, MODEL@URL or a checkpoint, that grades: support of citations, answers, 'I don't know'"
        ),
    ] = None,
    grader_words: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="JSON with questions of the grader in other words, such as those of a benchmark's own prompts",
        ),
    ] = None,
    rival: Annotated[
        str | None,
        typer.Option(
            help="measure another model by prompts, too: MODEL@URL of an endpoint, or a checkpoint"
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="search this index instead of --corpus by words; with the ids of the judgments"
        ),
    ] = None,
    answers: Annotated[
        int,
        typer.Option(
            min=0,
            help="write answers after rewrites to so many questions (tables 5 to 7)",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="seed of samples and intervals")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="folder of the report, figures, items and diagram"
        ),
    ] = None,
) -> CommandResult:
    """Measure the intrinsics of a model: the paper's tables with baselines and the published figures."""
    quiet()
    from selfrag.experiments.intrinsics.run import PARTS, MeasurementSettings, evaluate
    from selfrag.experiments.report_tables import markdown

    parts = tuple(only) if only else PARTS[:-1]
    measured = (
        parts,
        engine,
        limit,
        flows,
        shots,
        tuple(by or ()),
        seed,
        dialect,
        judge,
        grader,
        grader_words,
        rival,
        index,
        answers,
    )
    settings = MeasurementSettings(model, data, adapters, corpus, *measured)
    tables = [table for section in evaluate(settings, out) for table in section.tables]

    def show() -> None:
        for table in tables:
            show_markdown(f"{markdown(table)}\n")

    return CommandResult(tables, show)
