"""`selfrag interpret`: runs the grid of the self-interpretation paper, tests what replies say, prints the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from selfrag.cli.options import engine_options, quiet
from selfrag.cli.running import Commands
from selfrag.experiments.self_interpretation.settings import (
    DrawSettings,
    GridSettings,
    ReplySettings,
)
from selfrag.interface import (
    CommandResult,
    EngineChoice,
    Fields,
    FieldValues,
    Replaced,
    refuse_options,
    show_markdown,
)

app = Commands(
    name="interpret",
    help="Ask a model why it answered so, and test what it says.",
    no_args_is_help=True,
)

Endpoint = Annotated[FieldValues, Fields(ReplySettings, "What answers", "endpoint")]
RepliesSettings = Annotated[
    FieldValues,
    Fields(ReplySettings, "What answers", "endpoint", "layout", "max_tokens"),
]
Axes = Annotated[
    FieldValues,
    Fields(
        GridSettings,
        "The grid",
        "cutoffs=--cutoff",
        "orders=--order",
        "examples",
        "prompts=--prompt",
    ),
]
Drawing = Annotated[
    FieldValues,
    Fields(
        DrawSettings,
        "What is asked",
        *("limit", "seed", "index", "pool", "relevance", "example_contexts", "words"),
    ),
]
FILE = "questions with answers and passages: FILE of user rows, or TASK=FILE such as qampari=.."
RunFolder = Annotated[Path, typer.Argument(metavar="RUN")]


@app.command()
def run(
    file: Annotated[str, typer.Argument(help=FILE)],
    *,
    ctx: typer.Context,
    out: Path,
    model: str = "demo",
    engine: EngineChoice,
    replies: RepliesSettings,
    axes: Axes,
    drawing: Drawing,
    tag: str = "(example)",
    mention_examples: bool = False,
    retry_failed: bool = False,
    dry_run: bool = False,
) -> CommandResult:
    """Answer with citations over a grid of prompts, and show the tables.

    Args:
        out: folder of the run; the same command continues an interrupted one
        retry_failed: ask failed questions again
        dry_run: say what will be asked, and stop

    What answers:
        model: demo, a folder with a checkpoint, a name on the hub, or the name at an --endpoint

    What is asked:
        tag: opening tag around a demonstration
        mention_examples: mention demonstrations also where there are none, as Table 1
    """
    quiet()
    from selfrag.evaluation.presets import Given
    from selfrag.experiments.self_interpretation.generators import Generator
    from selfrag.experiments.self_interpretation.grid import grid
    from selfrag.experiments.self_interpretation.prompts import GridTemplate
    from selfrag.experiments.self_interpretation.questions import draw
    from selfrag.experiments.self_interpretation.run import planned, run_grid

    if replies.get("layout") == "reflective":
        unread = ("--max-tokens", "--tag", "--mention-examples")
        refuse_options(ctx, unread, "for a prompt, and --layout reflective makes none")
    cells = grid(GridSettings(**axes))
    template = GridTemplate.tagged(tag, always_mentions_examples=mention_examples)
    name, options = engine_options(engine)
    generator = Generator(model, name, options, template, **replies)
    passages = max(cell.cutoff for cell in cells)
    questions = draw(Given.parse(file), passages, DrawSettings(**drawing))
    if dry_run:
        line = planned(generator, questions, cells)
        value = {"plan": line, "cells": cells, "questions": len(questions.items)}
        return CommandResult(value, line)
    return _result(
        out, run_grid(generator, questions, cells, out, retry_failed=retry_failed)
    )


@app.command()
def faithfulness(
    run: RunFolder,
    *,
    model: str = "demo",
    engine: EngineChoice,
    replies: Endpoint,
    cell: list[str] | None = None,
    retry_failed: bool = False,
) -> CommandResult:
    """Put the replies of a run to the test: without what they cite, and in another order.

    Args:
        run: folder of a run
        retry_failed: ask failed questions again

    What answers:
        model: demo, a folder with a checkpoint, a name on the hub, or the name at an --endpoint
    """
    quiet()
    from selfrag.experiments.self_interpretation.faithfulness import run_tests
    from selfrag.experiments.self_interpretation.generators import Generator

    name, options = engine_options(engine)
    generator = Generator(model, name, options, **replies)
    results = run_tests(run, generator, cell or (), retry_failed=retry_failed)
    return _result(run, results)


@app.command()
def agree(
    run: RunFolder,
    *,
    model: str = "demo",
    engine: EngineChoice,
    cell: list[str] | None = None,
) -> CommandResult:
    """Compare what replies cite with a model's reflection tokens and with the citation intrinsic.

    Args:
        run: folder of a run

    What answers:
        model: demo, a folder with a checkpoint, a name on the hub, or the name at an --endpoint
    """
    quiet()
    from selfrag.experiments.self_interpretation.agreement import run_judges

    name, options = engine_options(engine)
    return _result(run, run_judges(run, model, name, cell or (), **options))


@app.command()
def table(
    run: RunFolder,
    *,
    answers: Annotated[bool, typer.Option("--answers-alone")] = False,
    out: Annotated[Path | None, Replaced()] = None,
) -> CommandResult:
    """Print the paper's three tables with the published figures, and every test that was run.

    Args:
        run: folder of a run
        answers: also score answers without their explanations
        out: a Markdown file
    """
    from selfrag.experiments.self_interpretation.report import page, tables
    from selfrag.experiments.self_interpretation.run import read_grid

    grid_run = read_grid(run)
    text = page(grid_run, answers=answers)
    if out is not None:
        from selfrag.interface import write_text

        write_text(out, text)
    value = tables(grid_run, answers=answers)
    return CommandResult(value, lambda: show_markdown(text))


def _result(run: Path, results: Mapping[str, Mapping[str, Any]]) -> CommandResult:
    from selfrag.evaluation.records import failures

    failed = failures(run, results)
    if failed:
        line = "the same command with --retry-failed asks failed questions again"
        typer.echo(line, err=True)
    return replace(table(run), failures=failed)
