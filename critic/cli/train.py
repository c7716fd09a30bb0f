"""`critic train`, `eval` and `adopt`: a critic of labelled rows, how good it is, and the published one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from critic.cases import GROUPS
from critic.student.settings import CRITIC, CriticConfig, Judging
from critic.subjects import EvaluationSubjects
from selfrag.cli.options import quiet
from selfrag.cli.running import given_options
from selfrag.cli.train import (
    Settings,
    check_processes,
    counted_lines,
    estimate_result,
    launch,
    plan_result,
    trained_result,
)
from selfrag.interface import (
    CommandResult,
    Fields,
    FieldValues,
    Replaced,
    UserError,
    check_free,
    show_markdown,
)
from selfrag.training.recipes import read_recipe
from selfrag.training.settings import TrainingConfig

_RECIPES = "the recipe's"
LEARNED = Fields(Judging, "What is learned", "style", default=_RECIPES)
LEARNING = Fields(
    TrainingConfig,
    "How it is learned",
    *("method", "epochs"),
    default=_RECIPES,
)


def train(
    rows: Path,
    *,
    ctx: typer.Context,
    base: str,
    out: Path,
    judging: Annotated[FieldValues, LEARNED],
    training: Annotated[FieldValues, LEARNING],
    per_label: Annotated[list[str] | None, typer.Option(show_default=_RECIPES)] = None,
    recipe: Annotated[
        str | None, typer.Option(show_default="cpu; cpu-full for full")
    ] = None,
    settings: Settings = None,
    processes: Annotated[int | None, typer.Option(min=1)] = None,
    print_config: bool = False,
    dry_run: bool = False,
) -> CommandResult:
    """Fine-tune a critic. Stopped or killed, the same command continues.

    Args:
        rows: Labelled cases, JSONL, or a folder with train/critic.jsonl[.gz].
        base: Base model: a checkpoint's folder, or a name on the hub.
        dry_run: Print the estimate and stop.

    What is learned:
        per_label: Most rows of each label, GROUP=N or GROUP=all; repeatable; other groups are left out.

    Where it runs:
        recipe: cpu, cpu-full, cpus, gpu, fsdp, paper, or a TOML file.
        processes: Number of processes of a recipe; by default one per GPU.
    """
    quiet()
    from critic.student.encoder_decoder import (
        is_encoder_decoder,
        train_encoder_decoder,
    )
    from critic.student.training import planned, train_critic
    from selfrag.loading import resolve_base

    by_option = LEARNED.by_option(judging, "critic") | LEARNING.by_option(
        training, "training"
    )
    if per_label:
        counts: dict[str, int | str] = dict.fromkeys(GROUPS, 0)
        counts.update(map(_count, per_label))
        by_option["--per-label"] = {
            f"critic.per_label.{group}": count for group, count in counts.items()
        }
    default = "cpu-full" if training.get("method") == "full" else "cpu"
    chosen = (
        read_recipe(recipe or default, CRITIC)
        .changed(by_option)
        .assigned(settings or ())
    )
    config, scale = CriticConfig.of(chosen), chosen.scale
    if print_config:
        return plan_result(chosen)
    options = given_options(ctx)
    check_processes(chosen, options)
    directory = resolve_base(base)
    if is_encoder_decoder(directory):
        if dry_run:
            raise UserError("--dry-run estimates causal models only; leave it out")
        folder = train_encoder_decoder(rows, directory, out, config)
        line = f"{folder}: trained; to see how good it is: critic eval ROWS --critic {folder}"
        return CommandResult({"model": folder}, line)
    if dry_run:
        facts, estimate = planned(rows, directory, config, scale)
        return estimate_result(facts, _rows(facts), estimate, config.training.epochs)
    launch(chosen, "critic", ["train", str(rows)], options)
    model = train_critic(rows, directory, out, config, scale=scale, recipe=chosen.name)
    if model is None:  # another process of the run reports
        return CommandResult(None)
    note = f"to see how good it is: critic eval ROWS --critic {model} --base {base} --train {rows}"
    return trained_result(model, out / "run", [note])


def _rows(facts: Mapping[str, Any]) -> list[str]:
    """Return what is learned: counts by label, and how much of the file that is."""
    cut = ", ".join(
        f"{part} {count}" for part, count in facts["rows_with_shortened_part"].items()
    )
    return [
        f"rows        {facts['rows']} of {facts['rows_in_file']} in the file; --per-label sets how many of each label",
        *counted_lines(facts["rows_by_label"]),
        *counted_lines(facts["rows_left_out"], "left out: "),
        f"shortened   {cut or 'nothing'}; no label",
    ]


def _count(text: str) -> tuple[str, int | str]:
    group, equals, number = text.partition("=")
    if not equals or not re.fullmatch(r"all|[1-9][0-9]{0,9}", number):
        raise UserError(
            f"--per-label {text!r:.80}: write GROUP=N or GROUP=all, such as IsSup=1000"
        )
    return group, number if number == "all" else int(number)


def evaluate(
    rows: Path,
    *,
    ctx: typer.Context,
    subjects: Annotated[
        FieldValues,
        Fields(
            EvaluationSubjects,
            "What is evaluated",
            *("critic", "base", "train", "generator", "engine"),
        ),
    ],
    out: Annotated[Path | None, Replaced(())] = None,
    seed: int = 0,
) -> CommandResult:
    """Measure accuracy, macro-F1, calibration and confusion by group, beside baselines and the paper's figures.

    Args:
        rows: Labelled cases, JSONL.
        out: JSON file of figures and judgments; the same command continues an interrupted run.
        seed: Seed of the intervals.
    """
    from critic.evaluation import (
        journal_of,
        report,
        run_evaluation,
        undefined_cases,
    )

    if out is not None and not journal_of(out).exists():
        check_free(ctx, [out])
    quiet()

    evaluations = run_evaluation(
        rows,
        EvaluationSubjects(**subjects),
        out=out,
        seed=seed,
        say=lambda text: typer.echo(text, err=True),
    )
    text = report(evaluations, next(iter(evaluations))) + "\n"
    figures = {name: figures.as_dict() for name, figures in evaluations.items()}
    failures = undefined_cases(evaluations)
    return CommandResult(figures, lambda: show_markdown(text), failures=failures)


def adopt(released: Path, critic: Path) -> CommandResult:
    """Write the critic.json of the published critic, with the instructions of its training rows.

    Args:
        released: Training rows of the published critic (JSON).
        critic: Folder of the published critic's checkpoint.
    """
    from critic.student.card import adopt as write

    card = write(released, critic)
    line = (
        f"{card}: a critic; to see how good it is: critic eval ROWS --critic {critic}"
    )
    return CommandResult({"card": card}, line)
