"""`--config FILE`: values of options from a TOML file, below those of the command line and of the environment.

Tables are called as the commands, such as `[serve]` or `[eval.run]`. What stands above them holds for every command
that has it. An error in a value names the file and the key, or the variable of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from selfrag.common.errors import UserError
from selfrag.common.reading import parse_toml, read_whole

SHARED = frozenset(
    re.findall(
        r"\S+",
        "model index engine dtype deterministic engine-set load-judge flow policy mode threshold without-evidence "
        "guardrail w-rel w-sup w-use w-judge require forbid judge beam passages shortlist segments",
    )
)
"""Options of several commands: a command that lacks one passes over it."""
_PLACES = "selfrag.places"


def take_settings(ctx: typer.Context, path: Path) -> None:
    """Make the values of the file the defaults of the command that runs."""
    options = {
        option.opts[0].removeprefix("--"): option
        for option in ctx.command.params
        if option.param_type_name == "option"
    }
    defaults: dict[str, Any] = dict(ctx.default_map or {})
    places: dict[str, str] = {}
    for key, value in _read(ctx, path).items():
        name = key.rpartition(".")[2]
        option = options.get(name)
        if option is not None and name != "config":
            place = f"{path}: {key}"
            defaults[str(option.name)] = _texts(value, place, multiple=option.multiple)
            places[str(option.name)] = place
        elif key not in SHARED:
            raise _unknown(path, key, f"option of {ctx.command_path}", options)
    ctx.default_map = defaults
    ctx.meta[_PLACES] = places


def _unknown(path: Path, key: str, kind: str, known: Iterable[str]) -> UserError:
    """Return the error for a key that names nothing, with the nearest name that does."""
    near = get_close_matches(key.rpartition(".")[2][:80], known)
    meant = (
        f"did you mean {near[0]}?"
        if near
        else f"see {kind.partition(' of ')[2]} --help"
    )
    return UserError(f"{path}: {key!r:.80} is no {kind}; {meant}")


def _read(ctx: typer.Context, path: Path) -> dict[str, Any]:
    """Return the settings of the command that runs, by dotted key; those of its own table come last."""
    table: dict[str, Any] = parse_toml(read_whole(path), str(path))
    groups: list[Any] = []
    above = ctx.parent
    while above is not None:
        groups.insert(0, above)
        above = above.parent
    settings: dict[str, Any] = {}
    prefix = ""
    for group, below in zip(groups, [*groups[1:], ctx], strict=True):
        commands = group.command.list_commands(group)
        for name, value in table.items():
            if name in commands and isinstance(value, Mapping):
                continue
            if prefix:
                kind = f"table of a command of {group.command_path}"
                raise _unknown(path, prefix + name, kind, commands)
            settings[name] = value
        table = table.get(str(below.info_name), {})
        if not isinstance(table, Mapping):
            return settings  # an option of that name, such as `judge`
        prefix += f"{below.info_name}."
    return settings | {prefix + name: value for name, value in table.items()}


def place_of(ctx: typer.Context, name: str) -> str | None:
    """Return the file and key, or the variable, that gave an option its value; None for the command line."""
    source = ctx.get_parameter_source(name)
    if source is None:
        return None
    if source.name == "DEFAULT_MAP":
        places: dict[str, str] = ctx.meta.get(_PLACES, {})
        return places.get(name)
    if source.name == "ENVIRONMENT":
        return f"{ctx.auto_envvar_prefix}_{name.upper()}"
    return None


def place_of_error(ctx: typer.Context, message: str) -> str | None:
    """Return the place of the option that an error line names or quotes the value of, as `place_of` does."""
    for name, value in ctx.params.items():
        place = place_of(ctx, name)
        if place is None:
            continue
        values = value if isinstance(value, list | tuple) else [value]
        quoted = any(len(str(part)) > 2 and str(part) in message for part in values)
        if quoted or re.search(rf"\b{name.replace('_', '[-_]')}\b", message):
            return place
    return None


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
