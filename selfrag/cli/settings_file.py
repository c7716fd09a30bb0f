"""`--config FILE`: values of options from a TOML file, below those of the command line and of the environment.

Tables are called as the commands, such as `[serve]` or `[eval.run]`. What stands above them holds for every command
that has it. An error in a value names the file and the key, or the variable of the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from selfrag.common.errors import UserError
from selfrag.common.reading import parse_toml, read_whole

SHARED = frozenset(
    re.findall(
        r"\S+",
        "model index engine engine-set load-judge flow policy guardrail judge passages segments",
    )
)
"""Options of several commands: a command that lacks one passes over it."""
REPEATED = frozenset(["engine-set", "load-judge", "guardrail", "judge"])
"""Those of them that take a list."""
_PLACES = "selfrag.places"


def take_settings(
    ctx: typer.Context, path: Path, load: Callable[[str, str], Any]
) -> None:
    """Make the values of the file the defaults of the command that runs.

    `load` gives a command of a program that holds a placeholder for it.

    Raises:
        UserError: a table or key names nothing, also in a table of another command, or holds a value of a wrong shape.
    """
    table: dict[str, Any] = parse_toml(read_whole(path), str(path))
    root = ctx.find_root()
    commands = root.command.list_commands(root)  # type: ignore[attr-defined]
    _check_tables(path, table, root, root.command, [str(root.info_name)], load)
    options = _options(ctx.command)
    settings: dict[str, Any] = {}
    for key, value in table.items():
        if key in commands and isinstance(value, Mapping):
            continue
        if key in options:
            settings[key] = value
        elif key in SHARED:  # of a command that lacks it, its shape alone is checked
            _texts(value, f"{path}: {key}", multiple=key in REPEATED)
        elif key in commands:
            raise UserError(f"{path}: {key!r} is a command; write its table as [{key}]")
        elif isinstance(value, Mapping | list):
            raise _unknown(path, key, f"table of {root.command_path}", commands)
        else:
            raise _unknown(path, key, f"option of {ctx.command_path}", options)
    names = ctx.command_path.split()[1:]
    below: Any = table
    for name in names:
        below = below.get(name) if isinstance(below, Mapping) else None
    if isinstance(below, Mapping):
        settings |= {f"{'.'.join(names)}.{key}": value for key, value in below.items()}
    defaults: dict[str, Any] = dict(ctx.default_map or {})
    places: dict[str, str] = {}
    for key, value in settings.items():
        option = options[key.rpartition(".")[2]]
        place = f"{path}: {key}"
        defaults[str(option.name)] = _texts(value, place, multiple=option.multiple)
        places[str(option.name)] = place
    ctx.default_map = defaults
    ctx.meta[_PLACES] = places


def check_variables(ctx: typer.Context) -> None:
    """Raise UserError for a variable that is called as those of the command and sets none of its options."""
    prefix = f"{ctx.auto_envvar_prefix}_"
    known = [f"{prefix}{str(option.name).upper()}" for option in ctx.command.params]
    for name in sorted(os.environ):
        if name.startswith(prefix) and name not in known:
            what = f"variable of {ctx.command_path}"
            raise _unknown("the environment", name, what, known)


def _options(command: Any) -> dict[str, Any]:
    """Return the options that a file may set, by name."""
    names = {}
    for option in command.params:
        name = option.opts[0].removeprefix("--")
        if option.param_type_name == "option":
            names[name] = option
    return names


def _check_tables(
    path: Path,
    table: Mapping[str, Any],
    root: Any,
    command: Any,
    called: list[str],
    load: Callable[[str, str], Any],
) -> None:
    """Check the table of a command, or of a group with the tables in it; keys above all tables are left out."""
    is_group = hasattr(command, "list_commands")
    known = command.list_commands(root) if is_group else _options(command)
    for name, value in table.items():
        key = ".".join([*called[1:], name])
        if is_group and name in known and isinstance(value, Mapping):
            below = load(called[0], name) if command is root.command else None
            below = below or command.get_command(root, name)
            _check_tables(path, value, root, below, [*called, name], load)
        elif is_group and command is not root.command:
            what = f"table of a command of {' '.join(called)}"
            raise _unknown(path, key, what, known)
        elif not is_group and name in known:
            _texts(value, f"{path}: {key}", multiple=known[name].multiple)
        elif not is_group:
            raise _unknown(path, key, f"option of {' '.join(called)}", known)


def _unknown(path: Path | str, key: str, kind: str, known: Iterable[str]) -> UserError:
    """Return the error for a key that names nothing, with the nearest name that does."""
    near = get_close_matches(key.rpartition(".")[2][:80], known)
    meant = (
        f"did you mean {near[0]}?"
        if near
        else f"see {kind.rpartition(' of ')[2]} --help"
    )
    return UserError(f"{path}: {key!r:.80} is no {kind}; {meant}")


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
