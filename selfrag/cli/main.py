"""The `selfrag` command: assembles the commands. Only the one that runs is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from selfrag.cli.running import (
    Commands,
    add_commands,
    make_program,
    run,
    selected_command,
    with_entry_points,
)

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
    "ask": "selfrag.cli.ask:ask",
    "chat": "selfrag.cli.chat:chat",
    "demo": "selfrag.cli.demo:demo",
    "serve": "selfrag.cli.serve:serve",
    "show": "selfrag.cli.show:show",
    "doctor": "selfrag.cli.doctor:doctor",
    "judge": "selfrag.cli.judge:judge",
    "index": "selfrag.cli.index:app",
    "train": "selfrag.cli.train:app",
    "eval": "selfrag.cli.eval:app",
    "data": "selfrag.cli.eval:data_app",
    "sweep": "selfrag.experiments.commands:sweep",
    "ablate": "selfrag.experiments.commands:ablate",
    "interpret": "selfrag.experiments.self_interpretation.commands:app",
}
"""Module and attribute of each."""


VARIABLES = {"serve": "SELFRAG_SERVE"}


def _load(name: str) -> Any:
    module, _, attribute = PLACES[name].partition(":")
    return getattr(import_module(module), attribute)


def assembled(selected: str | None = None) -> Commands:
    """Return all commands, or only the selected one beside placeholders that `--help` lists."""
    program = make_program(
        "selfrag",
        "Cited answers from a language model that retrieves on demand and criticises its own writing.",
        with_entry_points("selfrag.commands"),
    )
    return add_commands(program, COMMANDS, _load, selected, VARIABLES)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = globals()["app"] = assembled()
    return app


def __dir__() -> list[str]:
    return sorted({*globals(), "app"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process; `selfrag.cli.running` lists the exit codes."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run(assembled(selected_command(arguments)), "selfrag", arguments)
