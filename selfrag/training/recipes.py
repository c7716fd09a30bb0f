"""Recipes: TOML files with all settings of a run, in one format for generators, critics and adapters of intrinsics.

A recipe has a `[training]` table (`TrainingConfig`) and the tables of its stage; a generator or critic with `[scale]`
(`Scale`) runs through the Trainer, without it in the loop for one process. `extends` names the recipe that it changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from selfrag.common.errors import UserError
from selfrag.common.reading import parse_toml, read_whole
from selfrag.common.validation import validate
from selfrag.training.settings import Scale, TrainingConfig

CONFIGS = Path(str(files("selfrag.training") / "configs"))
"""Recipes of the package; the files for accelerate lie below."""


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """One kind of training."""

    name: str  # in STAGE/RECIPE
    folder: Path  # of the package's recipes
    tables: Mapping[str, type]  # dataclass of each table that a recipe may have
    # stages whose recipes may be extended, as STAGE/RECIPE
    others: tuple[TrainingStage, ...] = ()

    def names(self) -> list[str]:
        """Names of the package's recipes."""
        return sorted(path.stem for path in self.folder.glob("*.toml"))


GENERATOR = TrainingStage(
    "generator", CONFIGS, {"training": TrainingConfig, "scale": Scale}
)


class RecipeHead(TypedDict, total=False):
    """What a recipe has beside the tables of its stage."""

    extends: str
    intrinsics: dict[str, dict[str, Any]]  # tables of one intrinsic, by its name


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a run, each with what set it."""

    origin: str  # name of the recipe that was read, with those that it extends
    stage: TrainingStage  # whose tables it has
    tables: Mapping[str, Any]  # as TOML has them; checked when a table is made
    sources: Mapping[str, str]  # dotted name -> recipe or option that set it

    @property
    def name(self) -> str:
        """Return what a model card calls it: the recipe, and the options that change it."""
        options = sorted(
            {source for source in self.sources.values() if source.startswith("--")}
        )
        if options:
            return f"{self.origin} with {', '.join(options)}"
        return self.origin

    def changed(self, values: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """Return the recipe with values of options.

        Args:
            values: option -> dotted name -> value; None leaves what there is.
        """
        recipe = self
        for option, of_option in values.items():
            for name, value in of_option.items():
                if value is None:
                    continue
                for part in reversed(name.split(".")):
                    value = {part: value}
                recipe = recipe._over(value, option)
        return recipe

    def assigned(self, assignments: Sequence[str]) -> Recipe:
        """Return the recipe with values of `--set`: NAME=VALUE, dotted names; what is no TOML is a string.

        Raises:
            UserError: one has another form, or names a table that the stage does not have.
        """
        values: dict[str, Mapping[str, Any]] = {}
        for text in assignments:
            name, equals, value = (part.strip() for part in text.partition("="))
            if (
                not equals
                or "" in (parts := name.split("."))
                or len(parts) < 2
                or parts[0] not in self.stage.tables
            ):
                known = ", ".join(self.stage.tables)
                raise UserError(
                    f"--set {text!r:.80}: write TABLE.NAME=VALUE, such as training.epochs=3; tables: {known}"
                )
            typed: Any = value
            with suppress(UserError):
                typed = parse_toml(f"value = {value}", name)["value"]
            values[f"--set {name}"] = {name: typed}
        return self.changed(values)

    def table(self, name: str) -> Any:
        """Return one table as its dataclass; what no recipe names has the dataclass's default.

        Raises:
            UserError: a setting is unknown, of the wrong kind or out of bounds.
        """
        kind = self.stage.tables[name]

        def where(place: str) -> str:
            field = f"{name}.{place}".rstrip(".")
            return f"{self._source(field)}: {field}"

        return validate(kind, self.tables.get(name, {}), where)

    @property
    def config(self) -> TrainingConfig:
        """Return what is learned; errors as of `table`."""
        made: TrainingConfig = self.table("training")
        return made

    @property
    def scale(self) -> Scale | None:
        """Return where the Trainer computes; None for the loop for one process. Errors as of `table`."""
        return self.table("scale") if "scale" in self.tables else None

    def text(self) -> str:
        """Return all settings as a recipe, each with what set it in a comment.

        Raises:
            UserError: as `table`.
        """
        lines = [f"# {self.stage.name}: {self.name}"]
        for name in self.stage.tables:
            if name in self.tables or name != "scale":
                lines += self._lines(name, asdict(self.table(name)))
        return "\n".join(lines)

    def _lines(self, name: str, values: Mapping[str, Any]) -> Iterator[str]:
        yield f"\n[{name}]"
        for key, value in values.items():
            if not isinstance(value, dict):
                shown = json.dumps("none" if value is None else value)
                source = self.sources.get(f"{name}.{key}", "default")
                yield f"{f'{key} = {shown}':<34}# {source}"
        for key, value in values.items():
            if isinstance(value, dict):
                yield from self._lines(f"{name}.{key}", value)

    def _over(self, tables: dict[str, Any], source: str) -> Recipe:
        merged = _merged(self.tables, tables)
        sources = dict.fromkeys(_leaves(tables), source)
        return replace(self, tables=merged, sources={**self.sources, **sources})

    def _source(self, where: str) -> str:
        """Return what set a value, or the first part of a table."""
        inside = (
            source
            for name, source in self.sources.items()
            if name.startswith(f"{where}.")
        )
        return self.sources.get(where) or next(inside, f"recipe {self.origin}")


def read_recipe(
    name: str | Path, stage: TrainingStage = GENERATOR, of: str = ""
) -> Recipe:
    """Read a recipe of the package by name (STAGE/RECIPE), or a file, whose `extends` may name a file beside it.

    The table `[intrinsics.NAME]` of the intrinsic `of` goes before the common ones of the same file.

    Raises:
        UserError: there is none, it is not TOML, or a table holds something unknown or of the wrong kind.
    """
    recipe = _read(str(name), stage, of, Path(), ())
    for table in recipe.tables:
        recipe.table(table)
    return recipe


def _read(
    name: str, stage: TrainingStage, of: str, beside: Path, seen: tuple[Path, ...]
) -> Recipe:
    owner, path = _found(name, stage, beside)
    source = path.stem if owner is None else f"{owner.name}/{path.stem}"
    if path.resolve() in seen:
        raise UserError(f"recipe {name} extends itself")
    if not path.is_file():
        raise UserError(
            f"no recipe {name}: give a file or one of {', '.join(stage.names())}"
        )
    shown = f"recipe {source if owner else path}"
    tables = parse_toml(read_whole(path), shown)
    head = validate(RecipeHead, tables, shown, others="ignore")
    parent = head.get("extends")
    tables.pop("extends", None)
    if of:
        tables.pop("intrinsics", None)
        tables = _merged(tables, head.get("intrinsics", {}).get(of, {}))
    if unknown := sorted(set(tables) - set(stage.tables)):
        known = ", ".join(f"[{table}]" for table in stage.tables)
        raise UserError(
            f"{shown}: unknown {', '.join(unknown)}; known: extends, {known}"
        )
    if parent is None:
        below = Recipe("", stage, {}, {})
    else:  # the package's recipes extend those of the stage that they belong to
        below = replace(
            _read(parent, owner or stage, of, path.parent, (*seen, path.resolve())),
            stage=stage,
        )
    called = source if owner or parent is None else f"{source} (extends {below.origin})"
    return replace(below._over(tables, shown), origin=called)


def _found(
    name: str, stage: TrainingStage, beside: Path
) -> tuple[TrainingStage | None, Path]:
    """Return the stage whose recipe this is, None for a file of the user's, and its path."""
    for owner in (stage, *stage.others):
        short = name.removeprefix(f"{owner.name}/")
        if short in owner.names() and (owner is stage or short != name):
            return owner, owner.folder / f"{short}.toml"
    return None, beside / name


def launch_file(scale: Scale, *, gpu: bool) -> Path:
    """Return the file for `accelerate launch --config_file` that goes with these settings."""
    name = "cpu"
    if gpu or scale.sharding != "none":
        name = scale.sharding
    return CONFIGS / "accelerate" / f"{name}.yaml"


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(under.get(key), dict)
        result[key] = _merged(under[key], value) if both else value
    return result


def _leaves(tables: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"
