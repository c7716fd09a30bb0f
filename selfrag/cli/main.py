"""The `selfrag` command: assembles the commands. Only the one that runs is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import typer

from selfrag.cli.running import Commands, run

COMMANDS = {
    "ask": ("ask:ask", "Answer a question, and print the cited passages, the model's judgments and the cost."),
    "chat": ("ask:chat", "Talk with a model in the terminal; each answer sees the conversation so far."),
    "demo": (
        "ask:demo",
        "Answer three questions on the default model and corpus; everything needed is downloaded and built once.",
    ),
    "serve": ("serve:serve", "Serve a model over the OpenAI API, with citations, and a page at /."),
    "show": ("ask:show", "Write a page that shows why an answer is what it is, and ranks the recorded tree again."),
    "doctor": (
        "doctor:doctor",
        "Check the installation, the engine and a model. The exit code is 1 if MODEL cannot be used.",
    ),
    "intrinsic": (
        "intrinsic:intrinsic",
        "Judge a conversation: rewrite, certainty, faithfulness, answerability, citations and more.",
    ),
    "sweep": ("sweep:sweep", "Vary weights and thresholds: decode once, and re-rank the record for every setting."),
    "ablate": (
        "sweep:ablate",
        "Run the paper's ablations (Table 3a), the published code's policy, and reliance on memory (C.1).",
    ),
    "index": ("index:app", "Build and search an index of your own documents."),
    "train": ("train:app", "Train a generator, an adapter or a critic, and make training data."),
    "eval": ("eval:app", "Measure a model on held-out data."),
    "data": ("eval:data_app", "Make the public development files that figures are measured on."),
    "interpret": ("interpret:app", "Ask a model why it answered so, and test what it says."),
}
"""In the order of `--help`: module and attribute of each command or group of commands, and its line there."""


def assembled(wanted: str | None = None) -> Commands:
    """The commands, or only one of them, beside placeholders that `--help` lists."""
    app = Commands(
        name="selfrag",
        help="Cited answers from a language model that retrieves on demand and criticises its own writing.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for name, (place, line) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        real = wanted in (None, name)
        found = getattr(import_module(f"{__package__}.{module}"), attribute) if real else _placeholder(line)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _placeholder(line: str) -> Callable[[], None]:
    def nothing() -> None: ...

    nothing.__doc__ = line
    return nothing


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = globals()["app"] = assembled()
    return app


def __dir__() -> list[str]:
    return sorted({*globals(), "app"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process; `selfrag.cli.running` lists the exit codes."""
    given = sys.argv[1:] if argv is None else argv
    return run(assembled(given[0] if given else ""), "selfrag", given)
