"""`selfrag demo`: three answers of the default model, with their traces."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli import options
from selfrag.cli.options import EngineChoice
from selfrag.cli.results import CommandResult, wants_json
from selfrag.cli.running import Replaced
from selfrag.common.errors import UserError
from selfrag.common.untrusted import replace_surrogates

# Name of the trace file, what the question shows, the question, the most segments of its answer.
EXAMPLES = (
    ("fact", "a question that needs evidence", "Who wrote Pride and Prejudice?", 1),
    ("long-form", "a long answer, segment by segment", "Tell me about Marie Curie.", 3),
    (
        "no-retrieval",
        "a task that needs no evidence",
        "Write a friendly two-sentence note that thanks a neighbour for watering the plants.",
        2,
    ),
)
TRACES = tuple(f"{name}.json" for name, *_ in EXAMPLES)


def demo(
    *,
    ctx: typer.Context,
    out: Annotated[Path, Replaced(TRACES)] = Path("traces"),
    model: str = "demo",
    index: options.Index = None,
    engine: EngineChoice,
) -> CommandResult:
    """Answer three questions on the default model and corpus; everything needed is downloaded and built once.

    Args:
        out: folder for the traces
    """
    from rich.console import Console
    from rich.rule import Rule

    from selfrag.common.atomic import write_text
    from selfrag.demo.download import timed
    from selfrag.render import terminal_answer, terminal_text

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {out} cannot be used ({error.strerror}); name a folder that can be written"
        ) from error

    console = Console(quiet=wants_json(ctx))
    answers = []
    with ExitStack() as stack:
        with timed("model and index"):
            rag = stack.enter_context(options.load(model, index, engine))
        with timed("answers"):
            for name, shows, question, segments in EXAMPLES:
                console.print(Rule(shows, align="left"))
                console.print(terminal_text(question, "italic"))
                answer = rag.generate(question, max_segments=segments)
                file = out / f"{name}.json"
                console.print(terminal_answer(answer))
                write_text(file, replace_surrogates(answer.trace.to_json()))
                console.print(terminal_text(f"trace: {file}\n", "dim"))
                answers.append({"answer": answer.as_dict(), "trace": file})
    return CommandResult(
        answers,
        'Now your own:  selfrag ask "QUESTION"    selfrag index build FILES -o DIR    selfrag doctor',
    )
