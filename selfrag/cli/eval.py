"""`selfrag eval`: its commands, and `selfrag eval intrinsics`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.eval_metrics import facts, judge, metrics
from selfrag.cli.eval_report import export, report, systems, tasks
from selfrag.cli.eval_run import run
from selfrag.cli.options import quiet, show_markdown
from selfrag.cli.running import Commands

app = Commands(name="eval", help="Measure a model on held-out data.", no_args_is_help=True)
app.command()(run)
app.command()(tasks)
app.command()(systems)
app.command()(report)
app.command()(export)
app.command()(judge)
app.command()(facts)
app.command()(metrics)


@app.callback()
def group() -> None:
    """Measure a model on held-out data."""


@app.command()
def intrinsics(
    data: Annotated[Path, typer.Option(help="folder with the rows of the intrinsics")],
    model: Annotated[
        str, typer.Option(help="the adapters' base: demo, a folder with a checkpoint, or a hub name")
    ] = "demo",
    adapters: Annotated[
        Path | None, typer.Option(help="folder with a subfolder for each adapter; by default the demo's adapters")
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="folder with corpus, queries and qrels, for the recall of rewrites and for flows",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="measure this intrinsic only; repeatable; flows are off by default")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or transformers; by default the best one installed")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="most rows of each intrinsic")] = None,
    flows: Annotated[int, typer.Option(min=2, help="number of questions for flows")] = 60,
    shots: Annotated[int, typer.Option(min=0, help="examples of the prompted baseline; 0 leaves it out")] = 3,
    execution: Annotated[
        list[str] | None,
        typer.Option(
            help="measure this judge only: tokens, combined, adapter, prompt, overlap, bm25; repeatable; by default all"
        ),
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(help="prompts of the adapters, such as granite-3.2; needed for published ones")
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of samples and intervals")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder of the report, figures, items and diagram")
    ] = None,
) -> None:
    """Measure the intrinsics of a model: the paper's tables with baselines and the published figures."""
    quiet()
    from selfrag.experiments.intrinsics.run import PARTS, Settings, evaluate
    from selfrag.experiments.report_tables import markdown

    parts = tuple(only) if only else PARTS[:-1]
    executions = tuple(execution or ())
    settings = Settings(model, data, adapters, corpus, parts, engine, limit, flows, shots, executions, seed, dialect)
    for section in evaluate(settings, out):
        for table in section.tables:
            show_markdown(f"{markdown(table)}\n")
