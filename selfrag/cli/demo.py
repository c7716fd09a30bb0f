"""`selfrag demo`: three questions of different kinds on the default model and corpus. The questions are data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from retrieval.atomic import write_text
from selfrag.cli import options
from selfrag.errors import UserError
from selfrag.untrusted import whole


@dataclass(frozen=True, slots=True)
class Example:
    """A question of the demo.

    Attributes:
        name: of its trace file.
        shows: what it is there to show.
        question: as asked.
        settings: fields of `Decoding` that differ from the default.
    """

    name: str
    shows: str
    question: str
    settings: Mapping[str, Any] = field(default_factory=dict)


EXAMPLES = (
    Example(
        "fact",
        "a question that needs evidence",
        "Who wrote Pride and Prejudice?",
        {"max_segments": 1},
    ),
    Example(
        "long-form",
        "a long answer, segment by segment",
        "Tell me about Marie Curie.",
        {"max_segments": 3},
    ),
    Example(
        "no-retrieval",
        "a task that needs no evidence",
        "Write a friendly two-sentence note that thanks a neighbour for watering the plants.",
        {"max_segments": 2},
    ),
)


def demo(
    *,
    out: Annotated[Path, typer.Option(help="folder for the traces")] = Path("traces"),
    model: options.Model = "demo",
    index: options.Index = None,
    engine: options.EngineName = None,
) -> None:
    """Answer three questions on the default model and corpus; everything needed is downloaded and built once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be used ({error.strerror}); name a folder that can be written") from error

    from rich.console import Console
    from rich.rule import Rule

    from selfrag.cli.ask import plain, render
    from selfrag.cli.options import answering

    console = Console()
    with answering(model, index, engine) as rag:
        for example in EXAMPLES:
            console.print(Rule(example.shows, align="left"))
            console.print(plain(example.question, "italic"))
            answer = rag.generate(example.question, **example.settings)
            file = out / f"{example.name}.json"
            console.print(render(answer))
            write_text(file, whole(answer.trace.to_json()))
            console.print(plain(f"trace: {file}\n", "dim"))
    console.print(
        'Now your own:  selfrag ask "QUESTION"    selfrag index build FILES -o DIR    selfrag doctor', markup=False
    )
