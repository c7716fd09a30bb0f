"""`selfrag train`: a generator, an adapter, its merging into the base, and what is known of a run."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfrag.cli.fields import Fields, FieldValues
from selfrag.cli.options import quiet
from selfrag.cli.results import CommandResult
from selfrag.cli.running import (
    Commands,
    given_options,
    refuse_options,
    with_entry_points,
)
from selfrag.common.errors import UserError, count_of
from selfrag.training.settings import TrainingConfig

if TYPE_CHECKING:
    from selfrag.training.estimate import RunEstimate
    from selfrag.training.job import TrainingJob
    from selfrag.training.recipes import Recipe

Settings = Annotated[list[str] | None, typer.Option("--set")]
Processes = Annotated[int | None, typer.Option(min=1)]
Training = Fields(
    TrainingConfig,
    "How it is learned",
    *("epochs", "max_steps", "max_length"),
    default="the recipe's",
)

OF_INTRINSICS = ("--data", "--activated", "--dialect", "--seen")
OF_ROWS = ("--processes", "--leave-long")

app = Commands(
    name="train",
    help="Train a generator or an adapter.",
    no_args_is_help=True,
    cls=with_entry_points("selfrag.train"),
)


@app.command()
def adapter(
    what: str,
    *,
    ctx: typer.Context,
    base: str,
    out: Path,
    data: Path | None = None,
    activated: bool = False,
    dialect: str | None = None,
    seen: Path | None = None,
    recipe: str | None = None,
    settings: Settings = None,
    learning: Annotated[FieldValues, Training],
    start: Path | None = None,
    processes: Processes = None,
    leave_long: bool = False,
    print_config: bool = False,
    dry_run: bool = False,
) -> CommandResult:
    """Train a LoRA adapter: of an intrinsic, or with the reflection rows. The same command continues a run.

    Args:
        what: rows with reflection tokens (JSONL, .gz allowed), or an intrinsic such as answerability
        out: folder of the run and its results

    Intrinsics:
        data: folder with the intrinsic's rows, or the file
        activated: train an activated LoRA, for the transformers engine
        dialect: wire format of the prompts
        seen: rows that the base was trained on; uncertainty leaves out their questions
    """
    if Path(what).is_file() or "." in what or "/" in what:
        purpose = f"for an intrinsic, and {what} is a file of rows"
        refuse_options(ctx, OF_INTRINSICS, purpose)
        return _train("lora", Path(what), base, out, start, learning, ctx)
    from selfrag.intrinsics.catalog import find

    name = find(what).name
    refuse_options(ctx, OF_ROWS, "for rows with reflection tokens")
    if data is None:
        raise UserError(f"give the rows of {name}: --data FOLDER, or --data FILE")
    from selfrag.judges.wire import DIALECT

    quiet()
    from selfrag.loading import resolve_base
    from selfrag.training.intrinsics.job import ADAPTERS, AdapterJob, run
    from selfrag.training.recipes import read_recipe

    chosen = (
        read_recipe(recipe or "demo", ADAPTERS, name)
        .changed(Training.by_option(learning, "training"))
        .assigned(settings or ())
    )
    if print_config:
        return plan_result(chosen)
    job = AdapterJob(
        name,
        data,
        resolve_base(base),
        out,
        chosen.config,
        chosen.table("rows"),
        dialect or DIALECT,
        activated,
        chosen.name,
        seen,
        base_name={"demo": "the demo model of selfrag"}.get(base, ""),
        start=start,
    )
    if dry_run:
        return _intrinsic_estimate(job)
    return trained_result(run(job), job.run_dir)


def plan_result(recipe: Recipe) -> CommandResult:
    """Return the settings of a recipe, as `--print-config` prints them."""
    tables = {name: recipe.table(name) for name in recipe.tables}
    value = {"recipe": recipe.name, "tables": tables, "sources": recipe.sources}
    return CommandResult(value, recipe.text())


def estimate_result(
    facts: Mapping[str, Any], lines: Sequence[str], estimate: RunEstimate, epochs: int
) -> CommandResult:
    """Return what `--dry-run` prints: the rows, and what the run takes."""
    text = "\n".join([*lines, *estimate.lines(epochs)])
    return CommandResult({"rows": facts, "estimate": estimate}, text)


def trained_result(
    product: Path, run_dir: Path, notes: Sequence[str] = (), **values: Any
) -> CommandResult:
    """Return what a finished run made; `values` are further values of the JSON, `notes` further lines."""
    card = product / "README.md"
    line = f"{product}: trained; model card {card}; its curves: selfrag train track {run_dir.parent}"
    made = {"model": product, "card": card, "run": run_dir, **values}
    return CommandResult(made, "\n".join([line, *notes]))


@app.command()
def generator(
    rows: Path,
    *,
    ctx: typer.Context,
    base: str,
    out: Path,
    recipe: str | None = None,
    settings: Settings = None,
    learning: Annotated[FieldValues, Training],
    start: Path | None = None,
    processes: Processes = None,
    leave_long: bool = False,
    print_config: bool = False,
    dry_run: bool = False,
) -> CommandResult:
    """Train all weights of a generator, by default as the paper did. The same command continues a run.

    Args:
        rows: training rows, JSONL (see selfrag.training.rows); .gz allowed
        out: folder of the run and its results
    """
    return _train("full", rows, base, out, start, learning, ctx)


@app.command()
def merge(
    adapter: Path,
    *,
    base: str,
    out: Path,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
) -> CommandResult:
    """Put a trained adapter into its base: a checkpoint that every engine loads.

    Args:
        adapter: folder of the adapter that `selfrag train adapter` wrote
        out: new or empty folder of the checkpoint
        dtype: number format of the checkpoint; by default that of the base
    """
    quiet()
    from selfrag.loading import resolve_base
    from selfrag.training import export

    made = export.merge(resolve_base(base), adapter, out, dtype=dtype or "auto")
    return CommandResult(
        {"model": made}, f"{made}: a checkpoint; try selfrag ask --model {out}"
    )


@app.command()
def track(
    folder: Path,
    *,
    to: Literal["tensorboard", "wandb"] = "tensorboard",
) -> CommandResult:
    """Send losses, accuracies by group and speed of a run to TensorBoard or Weights & Biases.

    Args:
        folder: folder of a run: what --out named
        to: where to send the figures
    """
    from selfrag.training import reports

    run_dir = reports.run_directory(folder)
    with reports.board(to, run_dir, folder.resolve().name) as send:
        if to == "tensorboard":
            typer.echo(f"tensorboard --logdir {run_dir / 'tensorboard'}", err=True)
        last = reports.track(run_dir, send)
    return CommandResult({"steps": last}, f"{count_of(last, 'steps')} sent")


def _train(
    method: str,
    rows: Path,
    base: str,
    out: Path,
    start: Path | None,
    learning: FieldValues,
    ctx: typer.Context,
) -> CommandResult:
    """Train on rows with reflection tokens."""
    quiet()
    options = given_options(ctx)
    from selfrag.loading import resolve_base
    from selfrag.training.job import TrainingJob, run
    from selfrag.training.recipes import read_recipe

    kind, default = ("adapter", "cpu") if method == "lora" else ("generator", "paper")
    by_option = {f"train {kind}": {"training.method": method}} | Training.by_option(
        learning, "training"
    )
    recipe = (
        read_recipe(options.get("--recipe", default))
        .changed(by_option)
        .assigned(options.get("--set") or ())
    )
    config = recipe.config
    if config.method != method:
        raise UserError(
            f"selfrag train {kind} trains by {method!r}, not {config.method!r}"
        )
    if "--print-config" in options:
        return plan_result(recipe)
    check_processes(recipe, options)
    job = TrainingJob(
        rows,
        resolve_base(base),
        out,
        config,
        recipe.scale,
        recipe.name,
        start,
        "--leave-long" in options,
    )
    if "--dry-run" in options:
        return _dry_run(job)
    launch(recipe, "selfrag", ["train", kind, str(rows)], options)
    product = run(job)
    if product is None:  # another process of the run reports
        return CommandResult(None)
    return _report(job, product)


def check_processes(recipe: Recipe, options: Mapping[str, Any]) -> None:
    """Refuse many processes where the recipe is for one."""
    if recipe.scale is None and (processes := options.get("--processes", 1)) != 1:
        raise UserError(
            f"--processes {processes}: recipe {recipe.name} is for one process; take cpus or another for many"
        )


def launch(
    recipe: Recipe, program: str, command: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Run a command with its options in many processes, and exit, where its recipe asks for that."""
    from selfrag.training.job import launched, leave_processes

    if recipe.scale is None:
        return
    arguments = list(command)
    for name, value in options.items():
        if name == "--processes":
            continue
        if value is True:
            arguments.append(name)
            continue
        values = value if isinstance(value, list | tuple) else [value]
        for part in values:
            arguments += [name, str(part)]
    code = launched(recipe.scale, options.get("--processes"), program, arguments)
    if code is not None:
        raise typer.Exit(code)
    atexit.register(leave_processes)


def _dry_run(job: TrainingJob) -> CommandResult:
    from selfrag.training.estimate import estimate
    from selfrag.training.expansion import expanded_tokenizer
    from selfrag.training.run import rows_of

    read = rows_of(job.rows, job.config, leave_long=job.leave_long)
    prepared = read(expanded_tokenizer(job.base))
    run = estimate(prepared, job.config, job.scale)
    facts = prepared.facts
    lines = [
        f"rows        {facts['rows']}; {facts['rows_with_shortened_passages']} with a shortened passage"
        f" ({count_of(facts['passage_tokens_left_out'], 'tokens')} left out), no target shortened;"
        f" {facts['rows_left_out']} too long and left out",
        *counted_lines(facts["sources"]),
    ]
    return estimate_result(facts, lines, run, job.config.epochs)


def counted_lines(counts: Mapping[str, int], before: str = "") -> list[str]:
    """Return a line for each count, below the line of the rows."""
    return [f"            {count:>7} {before}{name}" for name, count in counts.items()]


def _report(job: TrainingJob, product: Path) -> CommandResult:
    from selfrag.training.records import read_log
    from selfrag.training.reports import last_figures

    notes = []
    if job.config.method == "lora":
        notes.append(
            f"to use it: selfrag train merge {product} --base {job.base} -o {job.out / 'model'}"
        )
    groups = {}
    for group, count, loss, accuracy in last_figures(
        read_log(job.run_dir / "log.jsonl")
    ):
        groups[group] = {"targets": count, "loss": loss, "accuracy": accuracy}
        notes.append(
            f"  {group:<9} {count:>7} targets  loss {loss:.3f}  accuracy {accuracy:.3f}"
        )
    return trained_result(product, job.run_dir, notes, groups=groups)


def _intrinsic_estimate(job: Any) -> CommandResult:
    from selfrag.judges.rendering import Renderer
    from selfrag.loading import load_tokenizer
    from selfrag.training.estimate import estimate
    from selfrag.training.intrinsics.job import load_rows, prepared, teachable

    rows, more = load_rows(job)
    renderer = Renderer.of(load_tokenizer(job.base))
    made = prepared(rows, teachable(job.intrinsic, job.dialect), renderer, job, more)
    run = estimate(made, job.config, None)
    facts = made.facts
    lines = [
        f"rows        {facts['rows']}; {count_of(facts['examples'], 'examples')} to learn from,"
        f" {facts['held_out']} held out",
        *counted_lines(facts["skipped"], "left out: "),
        *counted_lines(facts["sources"]),
    ]
    return estimate_result(facts, lines, run, job.config.epochs)
