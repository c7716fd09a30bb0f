"""What the scripts share: a command line made of a function's parameters, and progress against the clock."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_origin

import typer

from selfrag.cli.running import run

_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def command(
    function: Callable[..., int | None] | None = None,
    /,
    **commands: Callable[..., int | None],
) -> Callable[[], NoReturn]:
    """Return the main function of a script: it runs this function, or that one of several which the command line names.

    Positional parameters are arguments and keyword-only ones are options; `Args` of the docstring is their help. An
    error of the user is one line and exit code 2.
    """
    functions = {"main": function} if function is not None else commands

    def make_program() -> typer.Typer:
        program = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        for name, target in functions.items():
            about = _describe_parameters(target)
            # After `\b` the lines of a paragraph are printed as they are.
            page = "\b\n" + target.__globals__["__doc__"].replace("\n\n", "\n\n\b\n")
            if commands:
                program.callback(help=page)(lambda: None)
                page = about
            program.command(name.replace("_", "-"), help=page)(target)
        return program

    def main() -> NoReturn:
        sys.exit(run(make_program(), Path(sys.argv[0]).stem))

    vars(main)["make_program"] = make_program  # for the test of printed commands
    return main


def _describe_parameters(function: Callable[..., Any]) -> str:
    """Turn parameters into arguments and options with their help; return what the function is for."""
    text = inspect.cleandoc(function.__doc__ or "")
    summary, _, arguments = text.partition("Args:\n")
    described = dict(_ARGUMENT.findall(arguments))
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if get_origin(parameter.annotation) is Annotated:
            continue
        kind = typer.Argument
        if parameter.kind is parameter.KEYWORD_ONLY:
            kind = typer.Option
        words = described.get(parameter.name, "").split()
        function.__annotations__[parameter.name] = Annotated[
            parameter.annotation, kind(help=" ".join(words))
        ]
    return summary


def progress() -> Callable[[str], None]:
    """Return a function that prints lines to the error stream, each with the seconds since now."""
    start = time.perf_counter()

    def say(what: str) -> None:
        seconds = time.perf_counter() - start
        print(f"[{seconds:6.0f} s] {what}", file=sys.stderr, flush=True)

    return say
