"""Programs of many commands, of which only the one that runs is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import typer

from selfrag.cli.running import Commands


def add_commands(
    program: Commands,
    lines: Mapping[str, str],
    load: Callable[[str], Any],
    selected: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Commands:
    """Add commands and groups of commands to a program, and return it.

    Args:
        program: to add to.
        lines: each command's line in `--help`, in its order.
        load: imports a command or a group by its name.
        selected: load this command alone; the others become placeholders, which `--help` lists. None loads all.
        variables: prefix of the variables of the environment that set a command's options, by command.
    """
    for name, line in lines.items():
        command = load(name) if selected in (None, name) else _placeholder(line)
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=name)
            continue
        prefix = (variables or {}).get(name)
        settings = {"auto_envvar_prefix": prefix} if prefix else {}
        program.command(name, context_settings=settings)(command)
    return program


def _placeholder(line: str) -> Callable[[], None]:
    def nothing() -> None: ...

    nothing.__doc__ = line
    return nothing


def selected_command(arguments: list[str]) -> str:
    """Return the word of a command line that names its command; "" without one."""
    # A shell that completes a command line passes its words in the environment.
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    words = arguments or typed.split()[1:]
    return words[0] if words else ""
