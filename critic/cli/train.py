"""`critic train`: labelled rows and a base model in, a critic out. Declares options; trains nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from retrieval.errors import UserError

SIZE, SPEED = "What is learned", "How it is learned"


def train(
    rows: Annotated[Path, typer.Argument(help="Labelled cases, JSONL, or a folder with train/critic.jsonl[.gz].")],
    base: Annotated[Path, typer.Option(help="Base checkpoint.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory of the run; the same one resumes it.")],
    style: Annotated[
        Literal["tokens", "words"],
        typer.Option(help="Labels as reflection tokens or as plain words.", rich_help_panel=SIZE),
    ] = "tokens",
    method: Annotated[Literal["lora", "full"], typer.Option(rich_help_panel=SIZE)] = "lora",
    per_label: Annotated[
        list[str] | None,
        typer.Option(
            help="Most rows of each label, GROUP=N or GROUP=all; repeatable; groups not named are left out.",
            show_default="a run of about an hour on two cores",
            rich_help_panel=SIZE,
        ),
    ] = None,
    evidence: Annotated[int, typer.Option(help="Longest passage in tokens.", rich_help_panel=SIZE)] = 160,
    epochs: Annotated[int, typer.Option(rich_help_panel=SPEED)] = 1,
    learning_rate: Annotated[
        float | None, typer.Option(show_default="6e-4 for lora, 2e-5 for full", rich_help_panel=SPEED)
    ] = None,
    step_tokens: Annotated[int, typer.Option(help="Tokens of a step.", rich_help_panel=SPEED)] = 3200,
    seed: Annotated[int, typer.Option(rich_help_panel=SPEED)] = 30,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=SPEED)] = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count rows, labels and tokens, and stop.")] = False,
) -> None:
    """Fine-tune a critic. Stopped or killed, the same command goes on."""
    from dataclasses import replace

    from critic.student.training import CriticConfig, planned, train_critic

    default = CriticConfig()
    rate = learning_rate if learning_rate is not None else (6e-4 if method == "lora" else 2e-5)
    training = replace(
        default.training,
        method=method,
        epochs=epochs,
        learning_rate=rate,
        step_tokens=step_tokens,
        seed=seed,
        device=device,
        workers=1 if device.startswith("cuda") else default.training.workers,
    )
    counts = default.per_label if not per_label else dict(map(_count, per_label))
    config = CriticConfig(style, replace(default.limits, evidence=evidence), counts, training)
    if dry_run:
        import json

        typer.echo(json.dumps(planned(rows, base, config), indent=1))
        return
    typer.echo(str(train_critic(rows, base, out, config)))


def _count(text: str) -> tuple[str, int | None]:
    group, equals, number = text.partition("=")
    if not equals or not (number == "all" or number.isdecimal()) or number == "0":
        raise UserError(f"--per-label {text!r}: write GROUP=N or GROUP=all, such as IsSup=1000")
    return group, None if number == "all" else int(number)
