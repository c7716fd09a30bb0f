"""`selfrag sweep`, `selfrag ablate` and `selfrag eval calibration`: arguments in, tables and pictures out."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from selfrag.cli.options import engine_options, quiet
from selfrag.evaluation.settings import SourceSettings
from selfrag.interface import (
    CommandResult,
    EngineChoice,
    Fields,
    FieldValues,
    Replaced,
    UserError,
    printable,
    require,
    show_markdown,
)

PolicyChanges = Annotated[list[str] | None, typer.Option("--set")]
StudySource = Annotated[
    FieldValues,
    Fields(
        SourceSettings, "What is asked", "index=--index/--retriever", "limit", "seed"
    ),
]


def sweep(
    files: list[str],
    *,
    out: Path,
    axis: list[str] | None = None,
    grid: bool = False,
    changes: PolicyChanges = None,
    best: str = "headline,retrieval_rate<=0.4",
    model: str = "demo",
    engine: EngineChoice,
    item_options: StudySource,
    judge: Annotated[str | None, typer.Option("--load-judge")] = None,
    retry_failed: bool = False,
) -> CommandResult:
    """Vary weights and thresholds: decode once, and re-rank the record for every setting.

    Args:
        files: FILE of your own rows, or TASK=FILE or TASK/PROTOCOL=FILE of a published task
        out: folder of the study; the same command continues an interrupted one
        best: METRIC,METRIC<=NUMBER: choose the best setting on half of the items, report it on the others; or none
        judge: judge of citations by entailment, such as true, nli:MODEL or critic:FOLDER

    What is varied:
        axis: what to vary: NAME=VALUE,VALUE or NAME=FIRST:LAST:STEP; repeatable; by default issup and threshold
        grid: every combination of the values
    """
    from selfrag.evaluation.systems import decoding_settings
    from selfrag.experiments.goals import Goal
    from selfrag.experiments.studies import spared
    from selfrag.experiments.sweeps import (
        AXES,
        Axis,
        based,
        plan,
        sentences,
        write_sweep,
    )
    from selfrag.experiments.sweeps import sweep as run

    axes = tuple(Axis.parse(text) for text in axis) if axis else AXES
    goal = None if best == "none" else Goal.parse(best)
    base = decoding_settings(changes or [])
    # a bad setting is refused before a model is loaded
    policy = based(base)
    plan(policy, axes, grid=grid)
    if axis and not grid:
        policy.check_effective(each.setting for each in axes)

    answering, source, about = _asked(files, item_options, model, engine)
    swept = run(
        base,
        answering,
        source,
        out,
        axes=axes,
        grid=grid,
        goal=goal,
        seed=source.seed,
        judge_name=judge,
        retry_failed=retry_failed,
    )
    written = write_sweep(swept, out, about)
    lines = [*sentences(swept), "", spared(swept.studies)]
    return _result(swept.comparison, lines, written)


def ablate(
    files: list[str],
    *,
    out: Path,
    changes: PolicyChanges = None,
    baseline: list[Path] | None = None,
    no_retriever: str | None = None,
    no_critic: str | None = None,
    model: str = "demo",
    engine: EngineChoice,
    item_options: StudySource,
    retry_failed: bool = False,
) -> CommandResult:
    """Run the paper's ablations (Table 3a), the published code's policy, and reliance on memory (C.1).

    Args:
        files: FILE of your own rows, or TASK=FILE or TASK/PROTOCOL=FILE of a published task
        out: folder of the study; the same command continues an interrupted one
        baseline: run folder of another system on the same items, for reliance on memory; repeatable
        no_retriever: model trained on the pairs alone: a further row
        no_critic: model trained with the first passage, no critique: a further row
    """
    from selfrag.evaluation.systems import decoding_settings
    from selfrag.experiments.sweeps import based

    base = decoding_settings(changes or [])
    based(base)  # a bad setting is refused before a model is loaded

    from selfrag.experiments.ablations import ablate as run
    from selfrag.experiments.ablations import (
        against_paper,
        reliance_rows,
        write_ablation,
    )
    from selfrag.experiments.studies import spared

    answering, source, about = _asked(files, item_options, model, engine)
    checkpoints = {"no-retriever": no_retriever, "no-critic": no_critic}
    trained = {name: model for name, model in checkpoints.items() if model}
    ablated = run(
        base,
        answering,
        source,
        out,
        baselines=baseline or (),
        trained=trained,
        seed=source.seed,
        retry_failed=retry_failed,
    )
    about |= {"trained": trained} if trained else {}
    memory = []
    if ablated.reliance:
        memory = ["", "right answers that no passage holds, in percent:"]
        memory += [", ".join(row) for row in reliance_rows(ablated.reliance)]
    head, body = against_paper(ablated.comparison, ablated.studies)
    beside = [", ".join(cells) for cells in (head, *body)]
    written = write_ablation(ablated, out, about)
    lines = [*beside, *memory, "", spared(ablated.studies)]
    return _result(ablated.comparison, lines, written)


def _asked(
    files: list[str], item_options: FieldValues, model: str, engine: FieldValues
) -> tuple[Any, Any, dict[str, Any]]:
    """Return what answers, what is asked, and both in words for the record of a study."""
    require("matplotlib", extra="eval")  # for the plots at the end
    from selfrag.evaluation.runner import Model, Source

    quiet()
    source = Source.named(files, **item_options)
    about = {
        "model": model,
        "engine": engine.get("name"),
        "source": source.settings(),
    }
    return Model(model, *engine_options(engine)), source, about


def _result(comparison: Any, lines: list[str], files: list[Path]) -> CommandResult:
    """Return tables and sentences, and the files of a study, which are noted on the error stream."""
    from selfrag.evaluation.tables import brief, markdown

    def show() -> None:
        show_markdown(markdown(brief(comparison)))
        typer.echo(printable("\n".join(lines)))
        typer.echo(printable(f"written: {', '.join(map(str, files))}"), err=True)

    value = {"comparison": comparison, "notes": lines, "files": files}
    return CommandResult(value, show, failures=comparison.failures)


def calibration(
    rows: list[Path],
    *,
    out: Annotated[Path, Replaced(("calibration.json",))],
    model: str = "demo",
    engine: EngineChoice,
    biased: Annotated[bool, typer.Option("--biases")] = False,
    store: list[Path] | None = None,
) -> CommandResult:
    """Fit temperatures of a model's judgments, with calibration errors before and after, and reliability diagrams.

    Args:
        rows: training rows that the model was not trained on, JSONL
        out: folder of calibration.json, tables and diagrams
        model: demo, a folder with a checkpoint, or a hub name
        biased: fit a bias for each label beside the temperature
        store: checkpoint or adapter that is to bring the result; repeatable
    """
    quiet()
    from selfrag.evaluation.task_files import nothing_searched
    from selfrag.experiments import reflection_calibration as calibrating
    from selfrag.interface import SelfRAG
    from selfrag.training.rows import read_rows

    for folder in store or ():  # before the model is asked
        calibrating.settings_file(folder)
    read = list(chain.from_iterable(map(read_rows, rows)))
    if not read:
        raise UserError(f"{', '.join(map(str, rows))}: no rows")
    engine_name, settings = engine_options(engine)
    with SelfRAG.from_pretrained(
        model, retriever=nothing_searched, engine=engine_name, **settings
    ) as rag:
        observed = calibrating.observe(read, rag.prompting, rag.engine)
    scalings = calibrating.calibrate(observed, biased=biased)
    calibrating.write(observed, scalings, out)
    stored = [calibrating.store(scalings, folder) for folder in store or ()]

    def show() -> None:
        show_markdown(calibrating.table(scalings))
        for file in stored:
            typer.echo(printable(f"stored: {file}"))

    return CommandResult({"groups": scalings, "stored": stored}, show)
