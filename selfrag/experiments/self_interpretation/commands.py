"""`selfrag interpret`: runs the grid of the self-interpretation paper, tests what replies say, prints the tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from selfrag.cli.options import quiet, show_markdown
from selfrag.cli.running import Commands
from selfrag.common.untrusted import printable

app = Commands(
    name="interpret",
    help="Ask a model why it answered so, and test what it says.",
    no_args_is_help=True,
)

WHAT, GRID, ASKED = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("What answers", "The grid", "What is asked")
)
ModelOption = Annotated[
    str,
    WHAT(
        help="demo, a folder with a checkpoint, a name on the hub, or the name at an --endpoint"
    ),
]
AnsweringEngine = Annotated[
    str | None,
    WHAT(
        help="vllm, transformers or http://HOST:PORT; by default the best one installed"
    ),
]
Endpoint = Annotated[
    str | None, WHAT(help="URL of an OpenAI-compatible server, in place of an engine")
]
LayoutName = Literal["auto", "chat", "selfrag", "plain", "reflective"]
LAYOUT = "how the prompt is put; reflective: Self-RAG decoding, no prompt"
FILE = "questions with answers and passages: FILE of user rows, or TASK=FILE such as qampari=.."
Cells = Annotated[
    list[str] | None,
    typer.Option(
        "--cell", help="cells, such as 'k5-ranked-*'; repeatable; all by default"
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]
OutFolder = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="folder of the run; the same command continues an interrupted one",
    ),
]
Retry = Annotated[
    bool, typer.Option("--retry-failed", help="ask failed questions again")
]
Numbers = list[int] | None
Names = list[str] | None
PROMPTS = "basic, direct, counterfactual (all three by default), examples"
MENTION = "also where there are none, as Table 1"


@app.command()
def run(
    file: Annotated[str, typer.Argument(help=FILE)],
    out: OutFolder,
    model: ModelOption = "demo",
    engine: AnsweringEngine = None,
    endpoint: Endpoint = None,
    layout: Annotated[LayoutName, WHAT(help=LAYOUT)] = "auto",
    max_tokens: Annotated[int, WHAT(min=1, help="most new tokens of a reply")] = 200,
    cutoff: Annotated[
        Numbers, GRID(help="passages to show; 3, 5 and 10 by default")
    ] = None,
    order: Annotated[
        Names,
        GRID(
            help="order of the passages: ranked, top-last, random (these by default), reversed"
        ),
    ] = None,
    examples: Annotated[
        Numbers, GRID(help="demonstrations in the prompt; 0, 1 and 2 by default")
    ] = None,
    prompt: Annotated[Names, GRID(help=PROMPTS)] = None,
    limit: Annotated[int, ASKED(min=0, help="questions to draw; 0 for all")] = 60,
    seed: Annotated[int, ASKED(help="seed of the draw and of the random order")] = 0,
    index: Annotated[
        str | None,
        ASKED(help="index to search for questions without passages: a folder, or demo"),
    ] = None,
    pool: Annotated[
        str | None,
        ASKED(
            help="search the passages of all drawn questions with this encoder, as the paper does: demo, or a model"
        ),
    ] = None,
    relevance: Annotated[
        Literal["gold", "answers"],
        ASKED(
            help="relevant passages: those that the file calls gold, or those that hold an answer"
        ),
    ] = "gold",
    example_contexts: Annotated[
        int, ASKED(min=1, help="passages per demonstration")
    ] = 3,
    words: Annotated[
        int, ASKED(min=0, help="most words of a passage; 0 for all")
    ] = 200,
    tag: Annotated[str, ASKED(help="opening tag around a demonstration")] = "(example)",
    mention_examples: Annotated[
        bool, ASKED("--mention-examples", help=MENTION)
    ] = False,
    retry_failed: Retry = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what will be asked, and stop")
    ] = False,
) -> None:
    """Answer with citations over a grid of prompts, and show the tables."""
    quiet()
    from selfrag.evaluation.presets import Given
    from selfrag.experiments.self_interpretation.generators import Generator
    from selfrag.experiments.self_interpretation.grid import grid
    from selfrag.experiments.self_interpretation.prompts import GridTemplate
    from selfrag.experiments.self_interpretation.questions import draw
    from selfrag.experiments.self_interpretation.run import planned, run_grid

    options: dict[str, Any] = {
        "cutoffs": cutoff,
        "orders": order,
        "examples": examples,
        "prompts": prompt,
    }
    cells = grid(**{name: value for name, value in options.items() if value})
    template = GridTemplate.tagged(tag, always_mentions_examples=mention_examples)
    generator = Generator(model, engine, endpoint, layout, template, max_tokens)
    shown: dict[str, Any] = {
        "seed": seed,
        "example_contexts": example_contexts,
        "words": words or None,
        "pool": pool,
    }
    passages = max(cell.cutoff for cell in cells)
    questions = draw(
        Given.parse(file),
        passages,
        index=index,
        limit=limit or None,
        relevance=relevance,
        **shown,
    )
    if dry_run:
        typer.echo(planned(generator, questions, cells))
        return
    _show(out, run_grid(generator, questions, cells, out, retry_failed=retry_failed))


@app.command()
def faithfulness(
    run: RunFolder,
    model: ModelOption = "demo",
    engine: AnsweringEngine = None,
    endpoint: Endpoint = None,
    cell: Cells = None,
    retry_failed: Retry = False,
) -> None:
    """Put the replies of a run to the test: without what they cite, and in another order."""
    quiet()
    from selfrag.experiments.self_interpretation.faithfulness import run_tests
    from selfrag.experiments.self_interpretation.generators import Generator

    _show(
        run,
        run_tests(
            run,
            Generator(model, engine, endpoint),
            cell or (),
            retry_failed=retry_failed,
        ),
    )


@app.command()
def agree(
    run: RunFolder,
    model: ModelOption = "demo",
    engine: AnsweringEngine = None,
    cell: Cells = None,
) -> None:
    """Compare what replies cite with a model's reflection tokens and with the citation intrinsic."""
    quiet()
    from selfrag.experiments.self_interpretation.agreement import run_judges

    _show(run, run_judges(run, model, engine, cell or ()))


@app.command()
def table(
    run: RunFolder,
    answers: Annotated[
        bool,
        typer.Option("--answers", help="also score answers without their explanations"),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="a Markdown file")
    ] = None,
) -> None:
    """Print the paper's three tables with the published figures, and every test that was run."""
    from selfrag.experiments.self_interpretation.report import page
    from selfrag.experiments.self_interpretation.run import read_grid

    text = page(read_grid(run), answers=answers)
    if out is not None:
        from selfrag.common.atomic import write_text

        write_text(out, text)
    show_markdown(text)


def _show(run: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    from selfrag.evaluation.records import failures

    table(run)
    if said := failures(run, results):
        sys.stderr.write(
            printable(f"{said}; the same command with --retry-failed asks again") + "\n"
        )
