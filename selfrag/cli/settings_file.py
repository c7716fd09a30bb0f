"""`--config FILE`: values of options from a TOML file, below those of the command line and of the environment.

Tables are called as the commands, such as `[serve]`. What stands above them holds for every command that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from selfrag.common.errors import UserError
from selfrag.common.reading import parse_toml, read_whole

SHARED = frozenset(
    {
        *(
            "model",
            "index",
            "engine",
            "dtype",
            "deterministic",
            "engine-set",
            "load-judge",
            "flow",
            "policy",
        ),
        *(
            "mode",
            "threshold",
            "without-evidence",
            "guardrail",
            "w-rel",
            "w-sup",
            "w-use",
            "w-judge",
        ),
        *("require", "forbid", "judge", "beam", "passages", "shortlist", "segments"),
    }
)
"""Options of several commands: a command that lacks one passes over it."""


def take_settings(ctx: typer.Context, path: Path) -> None:
    """Make the values of the file the defaults of the command that runs."""
    commands = ctx.find_root().command.list_commands(ctx.find_root())  # type: ignore[attr-defined]
    options = {
        option.opts[0].removeprefix("--"): option
        for option in ctx.command.params
        if option.param_type_name == "option"
    }
    defaults: dict[str, Any] = dict(ctx.default_map or {})
    for name, value in _read(path, ctx.command_path.split()[1:], commands).items():
        option = options.get(name)
        if option is not None and name != "config":
            defaults[str(option.name)] = _texts(
                value, f"{path}: {name}", multiple=option.multiple
            )
        elif name not in SHARED:
            near = get_close_matches(name[:80], options)
            meant = (
                f"; did you mean {near[0]}?"
                if near
                else f", see {ctx.command_path} --help"
            )
            raise UserError(
                f"{path}: {name!r:.80} is no option of {ctx.command_path}{meant}"
            )
    ctx.default_map = defaults


def _read(path: Path, words: Sequence[str], commands: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a command, which its words name; those of its own table win."""
    table = parse_toml(read_whole(path), str(path))
    settings = {
        name: value
        for name, value in table.items()
        if not (name in commands and isinstance(value, Mapping))
    }
    for word in words:
        table = table.get(word, {})
        if not isinstance(table, dict):
            return settings  # an option of that name, such as `judge`
    return {**settings, **table}


def _texts(value: object, where: str, *, multiple: bool) -> str | list[str]:
    """Return a value as it would stand on the command line, which checks it."""
    if isinstance(value, Mapping):
        value = [f"{key}={_text(part, where)}" for key, part in value.items()]
    if multiple:
        return (
            [_text(part, where) for part in value]
            if isinstance(value, list)
            else [_text(value, where)]
        )
    return _text(value, where)


def _text(value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float) or value == "":
        raise UserError(f"{where}={value!r:.80}: give a text, a number, true or false")
    return str(value)
