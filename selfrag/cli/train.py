"""`selfrag train generator` and `selfrag train adapter`, and the place where other packages add their own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from selfrag.cli.running import Commands
from selfrag.errors import UserError

if TYPE_CHECKING:
    from selfrag.training.job import Job

GROUP = "selfrag.train"

What = Annotated[
    str, typer.Argument(help="rows with reflection tokens (JSONL, .gz allowed), or an intrinsic such as answerability")
]
Rows = Annotated[Path, typer.Argument(help="training rows, JSONL (see selfrag.training.rows); .gz allowed")]
Base = Annotated[str, typer.Option(help="the base model: a checkpoint's folder, or a name on the hub")]
Out = Annotated[Path, typer.Option("--out", "-o", help="folder of the run and its results")]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", help="cpu, cpus, gpu, fsdp, zero3, paper, paper-13b, or a TOML file")
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="number of processes, for recipes of the Trainer; by default one per GPU")
]
Adapter = Annotated[Path, typer.Argument(help="folder of the adapter that `selfrag train adapter` wrote")]
MergedOut = Annotated[Path, typer.Option("--out", "-o", help="new or empty folder of the checkpoint")]
Epochs = Annotated[int | None, typer.Option(min=1, help="epochs; by default the recipe's")]
Steps = Annotated[int | None, typer.Option(min=1, help="most optimizer steps")]
Rate = Annotated[float | None, typer.Option("--lr", min=0.0, help="peak learning rate; by default the recipe's")]
RowRate = Annotated[float | None, typer.Option("--row-lr", min=0.0, help="peak learning rate of the reflection rows")]
Length = Annotated[
    int | None, typer.Option("--max-length", min=16, help="most tokens of a row; passages are shortened to fit")
]
Seed = Annotated[int | None, typer.Option(help="seed of the order of rows and of new weights")]
Start = Annotated[Path | None, typer.Option(help="run or adapter of an earlier stage to begin with")]
LeaveLong = Annotated[bool, typer.Option("--leave-long", help="leave out and count rows whose target is too long")]
Dry = Annotated[bool, typer.Option("--dry-run", help="print the estimate and stop")]

_INTRINSIC = functools.partial(typer.Option, rich_help_panel="Intrinsics")
Data = Annotated[Path | None, _INTRINSIC(help="folder with the intrinsic's rows, or the file")]
PresetName = Annotated[str | None, _INTRINSIC("--preset", help="settings: demo or paper")]
Activated = Annotated[bool, _INTRINSIC("--activated", help="train an activated LoRA, for the transformers engine")]
Dialect = Annotated[str | None, _INTRINSIC(help="wire format of the prompts")]
Seen = Annotated[
    Path | None, _INTRINSIC(help="rows that the base was trained on; uncertainty leaves out their questions")
]
MostRows = Annotated[int | None, _INTRINSIC(min=20, help="most rows")]
Device = Annotated[str | None, _INTRINSIC(help="cpu or cuda")]

SETTINGS = {
    "--epochs": "epochs",
    "--max-steps": "max_steps",
    "--lr": "learning_rate",
    "--row-lr": "row_learning_rate",
    "--max-length": "max_length",
    "--seed": "seed",
}
"""Option -> field of `TrainingConfig` that it replaces."""


class _WithEntryPoints(TyperGroup):
    """Adds the commands of other packages, imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(_others())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        point = _others().get(cmd_name)
        if own is not None or point is None:
            return own
        target = point.load()
        if not isinstance(target, typer.Typer):
            function, target = target, Commands(add_completion=False)
            target.command(cmd_name)(function)
        command = typer.main.get_command(target)
        command.name = cmd_name
        return command


app = Commands(
    name="train",
    help="Train a generator, an adapter or a critic, and make training data.",
    no_args_is_help=True,
    cls=_WithEntryPoints,
)


@app.command()
def adapter(
    what: What,
    base: Base,
    out: Out,
    data: Data = None,
    preset: PresetName = None,
    activated: Activated = False,
    dialect: Dialect = None,
    seen: Seen = None,
    most_rows: MostRows = None,
    device: Device = None,
    recipe: RecipeOption = None,
    epochs: Epochs = None,
    max_steps: Steps = None,
    lr: Rate = None,
    row_lr: RowRate = None,
    max_length: Length = None,
    seed: Seed = None,
    start: Start = None,
    processes: Processes = None,
    leave_long: LeaveLong = False,
    dry_run: Dry = False,
) -> None:
    """Train a LoRA adapter: of an intrinsic, or with the reflection rows. The same command continues a run."""
    values = (epochs, max_steps, lr, row_lr, max_length, seed)
    of_intrinsics = {
        "--data": data,
        "--preset": preset,
        "--activated": activated or None,
        "--dialect": dialect,
        "--seen": seen,
        "--most-rows": most_rows,
        "--device": device,
    }
    of_rows = {"--recipe": recipe, "--processes": processes, "--row-lr": row_lr, "--leave-long": leave_long or None}
    if Path(what).is_file() or "." in what or "/" in what:
        if wrong := _given(of_intrinsics):
            raise UserError(f"{wrong[0]} is for an intrinsic, and {what} is a file of rows")
        _train("lora", Path(what), base, out, recipe or "cpu", values, start, processes, leave_long, dry_run)
        return
    from selfrag.intrinsics.catalog import find

    name = find(what).name
    if wrong := _given(of_rows):
        raise UserError(f"{wrong[0]} is for rows with reflection tokens; adapters of intrinsics have --preset")
    if data is None:
        raise UserError(f"give the rows of {name}: --data FOLDER, or --data FILE")
    from selfrag.intrinsics.contract import DIALECT
    from selfrag.loading import resolve_model
    from selfrag.training.intrinsics.job import AdapterJob, base_name, run
    from selfrag.training.intrinsics.presets import preset as named

    chosen = named(preset or "demo", name)
    selection = chosen.selection if most_rows is None else replace(chosen.selection, most_rows=most_rows)
    config = chosen.config(
        epochs=epochs, max_steps=max_steps, learning_rate=lr, max_length=max_length, seed=seed, device=device
    )
    job = AdapterJob(
        name,
        data,
        resolve_model(base),
        out,
        config,
        selection,
        dialect or DIALECT,
        activated,
        chosen.name,
        seen,
        base_name=base_name(base),
        start=start,
    )
    if dry_run:
        typer.echo(_intrinsic_estimate(job))
        return
    product = run(job)
    typer.echo(f"{product}: trained; loss plot {job.run_dir / 'loss.png'}, model card {product / 'README.md'}")


@app.command()
def generator(
    rows: Rows,
    base: Base,
    out: Out,
    recipe: RecipeOption = None,
    epochs: Epochs = None,
    max_steps: Steps = None,
    lr: Rate = None,
    row_lr: RowRate = None,
    max_length: Length = None,
    seed: Seed = None,
    start: Start = None,
    processes: Processes = None,
    leave_long: LeaveLong = False,
    dry_run: Dry = False,
) -> None:
    """Train all weights of a generator, by default as the paper did. The same command continues a run."""
    values = (epochs, max_steps, lr, row_lr, max_length, seed)
    _train("full", rows, base, out, recipe or "paper", values, start, processes, leave_long, dry_run)


@app.command()
def merge(adapter: Adapter, base: Base, out: MergedOut) -> None:
    """Put a trained adapter into its base: a checkpoint that every engine loads."""
    from selfrag.loading import resolve_model
    from selfrag.training import export

    typer.echo(f"{export.merge(resolve_model(base), adapter, out)}: a checkpoint; try selfrag ask --model {out}")


def _given(options: Mapping[str, Any]) -> list[str]:
    """Options that have a value."""
    return [name for name, value in options.items() if value is not None]


def _train(
    method: str,
    rows: Path,
    base: str,
    out: Path,
    recipe_name: str,
    values: Sequence[float | None],
    start: Path | None,
    processes: int | None,
    leave_long: bool,
    dry_run: bool,
) -> None:
    """Train on rows with reflection tokens; `values` are those of `SETTINGS`."""
    from selfrag.loading import resolve_model
    from selfrag.training.job import Job, launched, run
    from selfrag.training.settings import read_recipe

    recipe = read_recipe(recipe_name)
    config = recipe.config(method=method, **dict(zip(SETTINGS.values(), values, strict=True)))
    job = Job(rows, resolve_model(base), out, config, recipe.scale, recipe.name, start, leave_long)
    if recipe.scale is None and processes not in (None, 1):
        raise UserError(
            f"--processes {processes}: recipe {recipe.name} is for one process; take cpus, gpu, fsdp or zero3"
        )
    if dry_run:
        typer.echo(_dry_run(job, processes or 1))
        return
    if recipe.scale is not None:
        options = {"--base": base, "--out": out, "--recipe": recipe_name, "--start": start}
        options |= dict(zip(SETTINGS, values, strict=True))
        words = [word for name in _given(options) for word in (name, str(options[name]))]
        kind = "adapter" if method == "lora" else "generator"
        arguments = ["train", kind, str(rows), *words, *["--leave-long"] * leave_long]
        if (code := launched(recipe.scale, processes, "selfrag", arguments)) is not None:
            raise typer.Exit(code)
    product = run(job)
    if product is not None:
        _report(job, product)


def _dry_run(job: Job, processes: int) -> str:
    from selfrag.training.estimate import estimate, summary
    from selfrag.training.expansion import expanded_tokenizer
    from selfrag.training.run import rows_of

    prepared = rows_of(job.rows, job.config, leave_long=job.leave_long)(expanded_tokenizer(job.base))
    found = estimate(prepared, job.base, job.config, job.scale, processes=processes)
    facts = prepared.facts
    return "\n".join(
        [
            f"rows        {facts['rows']}; {facts['rows_with_shortened_passages']} with a shortened passage"
            f" ({facts['passage_tokens_left_out']} tokens left out), no target shortened;"
            f" {facts['rows_left_out']} too long and left out",
            *(f"            {count:>7} {source}" for source, count in facts["sources"].items()),
            *summary(found, job.config.epochs, processes),
        ]
    )


def _report(job: Job, product: Path) -> None:
    from selfrag.training.card import last_figures, read_log

    typer.echo(f"{product}: trained; loss plot {job.run_dir / 'loss.png'}, model card {product / 'README.md'}")
    if job.config.method == "lora":
        typer.echo(f"to use it: selfrag train merge {product} --base {job.base} -o {job.out / 'model'}")
    for group, count, loss, accuracy in last_figures(read_log(job.run_dir / "log.jsonl")):
        typer.echo(f"  {group:<9} {count:>7} targets  loss {loss:.3f}  accuracy {accuracy:.3f}")


def _intrinsic_estimate(job: Any) -> str:
    from selfrag.intrinsics.rendering import Renderer
    from selfrag.loading import load_tokenizer
    from selfrag.training.estimate import estimate, total_gib
    from selfrag.training.intrinsics.job import load_rows, prepared, teachable

    rows, more = load_rows(job)
    renderer = Renderer.of(load_tokenizer(job.base))
    made = prepared(rows, teachable(job.intrinsic, job.dialect), renderer, job, more)
    found = estimate(made, job.base, job.config, None)
    facts = made.facts
    lines = [
        f"rows        {facts['rows']}; {facts['examples']} examples to learn from, {facts['held_out']} held out",
        *(f"            {count:>7} left out: {why}" for why, count in facts["skipped"].items()),
        *(f"            {count:>7} {source}" for source, count in facts["sources"].items()),
        f"tokens      {found.tokens} over at most {job.config.epochs} passes",
        f"steps       at most {found.steps}",
        f"memory      about {total_gib(found.memory):.1f} GiB",
        f"time        at most about {found.seconds / 60:.0f} minutes; good to a factor of two",
    ]
    return "\n".join(lines)


def _others() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=GROUP)}
