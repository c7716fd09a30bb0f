"""`selfrag interpret`: arguments in, runs and tables out. Asking and measuring is the business of the experiments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from selfrag.cli.commands import Commands
from selfrag.untrusted import printable

app = Commands(name="interpret", help="Ask a model why it answered so, and test what it says.", no_args_is_help=True)

WHAT, GRID, ASKED = "What answers", "The grid", "What is asked"

Model = Annotated[
    str,
    typer.Option(help="demo, a folder with a checkpoint, a hub name; its name at an --endpoint", rich_help_panel=WHAT),
]
Engine = Annotated[
    str | None,
    typer.Option(help="vllm, transformers or http://HOST:PORT; else the best one here", rich_help_panel=WHAT),
]
Endpoint = Annotated[
    str | None, typer.Option(help="URL of an OpenAI-compatible server, in place of an engine", rich_help_panel=WHAT)
]
Cells = Annotated[list[str] | None, typer.Option("--cell", help="such as 'k5-ranked-*'; repeatable; else all")]
Run = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]
Retry = Annotated[bool, typer.Option("--retry-failed", help="ask again what failed before")]


@app.callback()
def group() -> None:
    """Ask a model why it answered so, and test what it says."""


@app.command()
def run(
    file: Annotated[
        str,
        typer.Argument(help="questions with answers and passages: FILE of user rows, or TASK=FILE such as qampari=.."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of the run; an interrupted one goes on")],
    model: Model = "demo",
    engine: Engine = None,
    endpoint: Endpoint = None,
    layout: Annotated[
        Literal["auto", "chat", "selfrag", "plain", "reflective"],
        typer.Option(help="how the prompt is put; reflective: Self-RAG decoding, no prompt", rich_help_panel=WHAT),
    ] = "auto",
    max_tokens: Annotated[int, typer.Option(min=1, help="of a reply", rich_help_panel=WHAT)] = 200,
    cutoff: Annotated[
        list[int] | None, typer.Option(help="passages; 3, 5, 10 by default", rich_help_panel=GRID)
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(help="ranked, top-last, random (all three by default), reversed", rich_help_panel=GRID),
    ] = None,
    examples: Annotated[
        list[int] | None, typer.Option(help="demonstrations; 0, 1, 2 by default", rich_help_panel=GRID)
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="basic, direct, counterfactual (all three by default), examples", rich_help_panel=GRID),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="questions, drawn; 0 for all", rich_help_panel=ASKED)] = 60,
    seed: Annotated[int, typer.Option(help="of the draw and the random order", rich_help_panel=ASKED)] = 0,
    index: Annotated[
        str | None,
        typer.Option(help="folder of an index, or demo, for questions without passages", rich_help_panel=ASKED),
    ] = None,
    relevance: Annotated[
        Literal["gold", "answers"],
        typer.Option(help="relevant is what the file calls gold, or what holds an answer", rich_help_panel=ASKED),
    ] = "gold",
    example_contexts: Annotated[
        int, typer.Option(min=1, help="passages of a demonstration", rich_help_panel=ASKED)
    ] = 3,
    words: Annotated[int, typer.Option(min=0, help="of a passage at most; 0 for all", rich_help_panel=ASKED)] = 200,
    tag: Annotated[str, typer.Option(help="of a demonstration", rich_help_panel=ASKED)] = "(example)",
    mention_examples: Annotated[
        bool, typer.Option("--mention-examples", help="also where there are none, as Table 1", rich_help_panel=ASKED)
    ] = False,
    retry_failed: Retry = False,
) -> None:
    """Answer with citations over a grid of prompts, and show the tables."""
    from selfrag.cli.session import quiet

    quiet()
    from selfrag.evaluation.presets import Given
    from selfrag.experiments.interpretation.commands import run_grid
    from selfrag.experiments.interpretation.generator import Generator
    from selfrag.experiments.interpretation.grid import grid, parse_orders
    from selfrag.experiments.interpretation.source import Drawing
    from selfrag.experiments.interpretation.template import Template
    from selfrag.experiments.interpretation.trials import Showing

    given = {"cutoffs": cutoff, "orders": parse_orders(order), "examples": examples, "prompts": prompt}
    cells = grid(**{name: value for name, value in given.items() if value})  # type: ignore[arg-type]
    template = Template.tagged(tag, always_mentions_examples=mention_examples)
    generator = Generator(model, engine, endpoint, layout, template, max_tokens)
    drawing = Drawing(
        Given.parse(file), index, limit or None, relevance, Showing(seed, example_contexts, words or None)
    )
    _show(out, run_grid(generator, drawing, cells, out, retry_failed=retry_failed))


@app.command()
def faithfulness(
    run: Run,
    model: Model = "demo",
    engine: Engine = None,
    endpoint: Endpoint = None,
    cell: Cells = None,
    retry_failed: Retry = False,
) -> None:
    """Put the replies of a run to the test: without what they cite, and in another order."""
    from selfrag.cli.session import quiet

    quiet()
    from selfrag.experiments.interpretation.commands import run_tests
    from selfrag.experiments.interpretation.generator import Generator

    _show(run, run_tests(run, Generator(model, engine, endpoint), cell or (), retry_failed=retry_failed))


@app.command()
def agree(run: Run, model: Model = "demo", engine: Engine = None, cell: Cells = None) -> None:
    """Compare what replies cite with a model's reflection tokens and with the citation intrinsic."""
    from selfrag.cli.session import quiet

    quiet()
    from selfrag.experiments.interpretation.commands import run_judges

    _show(run, run_judges(run, model, engine, cell or ()))


@app.command()
def table(
    run: Run,
    whole: Annotated[bool, typer.Option("--whole", help="also score whole generations, explanation included")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="a Markdown file")] = None,
) -> None:
    """The paper's three tables with one's own figures, the published ones beside them, and every test that was run."""
    text = _text(run, whole=whole)
    if out is not None:
        from retrieval.atomic import write_text

        write_text(out, text)
    sys.stdout.write(text)


def _show(run: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    from selfrag.evaluation.records import failures

    sys.stdout.write(_text(run))
    if said := failures(run, results):
        sys.stderr.write(printable(f"{said}; the same command with --retry-failed asks again") + "\n")


def _text(run: Path, *, whole: bool = False) -> str:
    from selfrag.experiments.interpretation.reading import read_grid
    from selfrag.experiments.interpretation.report import page

    return page(read_grid(run), whole=whole)
