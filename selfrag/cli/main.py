"""The `selfrag` command: assembles the commands. Only the one that runs is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import typer

from selfrag.cli.running import Commands, make_program, run, with_entry_points

COMMANDS = {
    "ask": "Answer a question, and print the cited passages, the model's judgments and the cost.",
    "chat": "Talk with a model in the terminal; each answer sees the conversation so far.",
    "demo": "Answer three questions on the default model and corpus; everything needed is downloaded and built once.",
    "serve": "Serve a model over the OpenAI API, with citations, and a page at /.",
    "show": "Write a page that shows why an answer is what it is, and ranks the recorded tree again.",
    "doctor": "Check the installation, the engine and a model. The exit code is 1 if MODEL cannot be used.",
    "judge": "Judge a conversation: certainty, faithfulness, answerability, citations, rewrite and more.",
    "sweep": "Vary weights and thresholds: decode once, and re-rank the record for every setting.",
    "ablate": "Run the paper's ablations (Table 3a), the published code's policy, and reliance on memory (C.1).",
    "index": "Build and search an index of your own documents.",
    "train": "Train a generator or an adapter.",
    "eval": "Measure a model on held-out data.",
    "data": "Make the public development files that figures are measured on.",
    "interpret": "Ask a model why it answered so, and test what it says.",
}
"""Commands and groups of commands in the order of `--help`, with their lines there."""
PLACES = {
    **{name: f"selfrag.cli.ask:{name}" for name in ("ask", "chat")},
    **{
        name: f"selfrag.cli.{name}:{name}"
        for name in ("demo", "serve", "show", "doctor", "judge")
    },
    **{name: f"selfrag.cli.{name}:app" for name in ("index", "train", "eval")},
    "data": "selfrag.cli.eval:data_app",
    **{name: f"selfrag.experiments.commands:{name}" for name in ("sweep", "ablate")},
    "interpret": "selfrag.experiments.self_interpretation.commands:app",
}
"""Module and attribute of each."""


def assembled(wanted: str | None = None) -> Commands:
    """Return all commands, or only the wanted one beside placeholders that `--help` lists."""
    app = make_program(
        "selfrag",
        "Cited answers from a language model that retrieves on demand and criticises its own writing.",
        with_entry_points("selfrag.commands"),
    )
    for name, line in COMMANDS.items():
        if wanted in (None, name):
            module, _, attribute = PLACES[name].partition(":")
            command = getattr(import_module(module), attribute)
        else:
            command = _placeholder(line)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            variables = (
                {"auto_envvar_prefix": "SELFRAG_SERVE"} if name == "serve" else {}
            )
            app.command(name, context_settings=variables)(command)
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
    arguments = sys.argv[1:] if argv is None else argv
    # A shell that completes a command line passes its words in the environment.
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    words = arguments or typed.split()[1:]
    return run(assembled(words[0] if words else ""), "selfrag", arguments)
