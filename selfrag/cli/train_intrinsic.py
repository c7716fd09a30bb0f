"""`selfrag train adapter NAME`: the adapter of an intrinsic. Options and what they mean for a job; no training here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from selfrag.errors import UserError

PANEL = "Intrinsics"

Data = Annotated[Path | None, typer.Option(help="folder with the intrinsic's rows, or the file", rich_help_panel=PANEL)]
PresetName = Annotated[str | None, typer.Option("--preset", help="demo or paper", rich_help_panel=PANEL)]
Activated = Annotated[
    bool, typer.Option("--activated", help="an activated LoRA, for the transformers engine", rich_help_panel=PANEL)
]
Dialect = Annotated[str | None, typer.Option(help="whose prompts; else the default ones", rich_help_panel=PANEL)]
Seen = Annotated[
    Path | None,
    typer.Option(help="rows the base was trained on; uncertainty leaves their questions out", rich_help_panel=PANEL),
]
MostRows = Annotated[int | None, typer.Option(min=20, help="at most this many rows", rich_help_panel=PANEL)]
Device = Annotated[str | None, typer.Option(help="cpu or cuda", rich_help_panel=PANEL)]


@dataclass(frozen=True, slots=True)
class Given:
    """Options that only intrinsics have."""

    data: Path | None
    preset: str | None
    activated: bool
    dialect: str | None
    seen: Path | None
    most_rows: int | None
    device: str | None


def named(what: str) -> str | None:
    """The intrinsic's name, or None for what looks like a file."""
    from selfrag.intrinsics.catalog import find

    if Path(what).is_file() or "." in what or "/" in what:
        return None
    name: str = find(what).name
    return name


def refuse(given: Given, what: str) -> None:
    """Refuse options of intrinsics where rows were given.

    Raises:
        UserError: one was given.
    """
    for name, value in asdict(given).items():
        if value:
            raise UserError(f"--{name.replace('_', '-')} is for an intrinsic, and {what} is a file of rows")


def train(
    name: str,
    base: str,
    out: Path,
    given: Given,
    changes: Mapping[str, Any],
    others: Mapping[str, Any],
    *,
    start: Path | None,
    dry_run: bool,
) -> None:
    """Train, or say what it would take.

    Raises:
        UserError: an option does not go with an intrinsic, or as `selfrag.intrinsics.training.job.run`.
    """
    from selfrag.intrinsics.chat import DIALECT
    from selfrag.intrinsics.training.job import AdapterJob, base_name, run
    from selfrag.intrinsics.training.presets import preset
    from selfrag.loading import resolve_model

    if wrong := [option for option, value in others.items() if value is not None]:
        raise UserError(f"{wrong[0]} is for rows with reflection tokens; adapters of intrinsics have --preset")
    if given.data is None:
        raise UserError(f"give the rows of {name}: --data FOLDER, or --data FILE")
    settings = preset(given.preset or "demo", name)
    kept = {key: value for key, value in changes.items() if key not in ("method", "row_learning_rate")}
    making = settings.making
    if given.most_rows is not None:
        making = replace(making, most_rows=given.most_rows)
    job = AdapterJob(
        name,
        given.data,
        resolve_model(base),
        out,
        settings.config(**kept, device=given.device),
        making,
        given.dialect or DIALECT,
        given.activated,
        settings.name,
        given.seen,
        base_name=base_name(base),
        start=start,
    )
    if dry_run:
        typer.echo(_estimated(job))
        return
    adapter = run(job)
    typer.echo(f"{adapter}: trained; loss plot {job.run_dir / 'loss.png'}, model card {adapter / 'README.md'}")


def _estimated(job: Any) -> str:
    from selfrag.intrinsics.rendering import Renderer
    from selfrag.intrinsics.training.job import load_rows, prepared, teachable
    from selfrag.loading import load_tokenizer
    from selfrag.training.estimate import estimate, total_gib

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
