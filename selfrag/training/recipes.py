"""Recipes: named files with everything a run needs but its rows, base model and place.

A recipe has a `[training]` table (`TrainingConfig`: what is learned) and, if it runs through the Trainer, a `[scale]`
table (`Scale`: where and how it is computed). Without `[scale]` it runs in the CPU loop. `extends` names another.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from selfrag.errors import UserError
from selfrag.training.settings import Scale, TrainingConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a run.

    Attributes:
        name: of the file, without suffix.
        training: the table of `TrainingConfig`, checked by `config`.
        scale: for runs through the Trainer; None for the CPU loop.
    """

    name: str
    training: Mapping[str, Any]
    scale: Scale | None

    def config(self, **changes: Any) -> TrainingConfig:
        """The `TrainingConfig`, with the fields in `changes` that are not None."""
        made = _make(TrainingConfig, self.training, f"{self.name} [training]")
        return replace(made, **{key: value for key, value in changes.items() if value is not None})


def known() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def read(name: str | Path) -> Recipe:
    """A recipe of the package by name, or a file.

    Raises:
        UserError: there is none, it is not TOML, or a table holds something unknown or of the wrong type.
    """
    tables = _tables(str(name), ())
    label = Path(name).stem
    if unknown := sorted(set(tables) - {"training", "scale"}):
        raise UserError(f"recipe {label}: unknown {', '.join(unknown)}; known: extends, [training], [scale]")
    scale = tables.get("scale")
    made = None if scale is None else _make(Scale, scale, f"{label} [scale]")
    return Recipe(label, tables.get("training", {}), made)


def launch_file(scale: Scale, *, gpu: bool) -> Path:
    """The file for `accelerate launch --config_file` that goes with these settings."""
    name = scale.sharding if gpu or scale.sharding != "none" else "cpu"
    return Path(str(_folder() / "accelerate" / f"{name}.yaml"))


def _folder() -> Any:
    return files("selfrag.training") / "configs"


def _tables(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise UserError(f"recipe {name} extends itself")
    try:
        text = (_folder() / f"{name}.toml").read_text() if name in known() else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"no recipe {name}: give a file or one of {', '.join(known())}") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {name}: {error}") from error
    parent = tables.pop("extends", None)
    return _merged(_tables(str(parent), (*seen, name)), tables) if parent else tables


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(under.get(key), dict)
        result[key] = _merged(under[key], value) if both else value
    return result


def _make(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """A dataclass of a table; tables inside it become dataclasses too."""
    if not isinstance(table, Mapping):
        raise UserError(f"recipe {where}: must be a table, not {table!r:.40}")
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    if unknown := sorted(set(table) - set(names)):
        raise UserError(f"recipe {where}: unknown {', '.join(unknown)}; known: {', '.join(names)}")
    values = {key: _value(hints[key], value, f"{where} {key}") for key, value in table.items()}
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return _make(hint, value, where)
    options = getattr(hint, "__args__", (hint,))
    if value == "none" and type(None) in options:  # TOML has no null
        return None
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    literal = [one for one in options if isinstance(one, str)]
    if literal and value in literal:
        return value
    if any(isinstance(one, type) and type(value) is one for one in options):
        return value
    raise UserError(f"recipe {where} = {value!r}: wrong kind; expected {getattr(hint, '__name__', hint)}")
