"""Options that set fields of a dataclass: type, choices, default and help stand in the class, and nowhere else.

A command takes them as one parameter, `Annotated[FieldValues, Fields(Decoding, "How far", "beam")]`, and gets the
values that were given, by field. The class documents its fields under `Attributes:`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

FieldValues: TypeAlias = dict[str, Any]
"""Values of the fields whose options were given; a field of a field has a dotted name."""
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


class Fields:
    """Options for some fields of a dataclass.

    Args:
        config: the dataclass.
        heading: of these options in the help.
        options: each a field, or FIELD=--OPTION where the option has another name. A dot leads into a field that is a
            dataclass itself.
        default: shown in place of the default of each field, such as "the recipe's".
    """

    def __init__(
        self, config: type, heading: str, *options: str, default: str = ""
    ) -> None:
        self.config, self.heading = config, heading
        self._default = default
        self._options = [option.partition("=") for option in options]

    def parameters(self) -> Iterator[tuple[str, inspect.Parameter]]:
        """Yield each field with the parameter of a command that sets it."""
        for name, _, option in self._options:
            field = find_field(self.config, name)
            flag = option or "--" + name.rpartition(".")[2].replace("_", "-")
            default = self._default or field.default
            info = typer.Option(
                flag,
                help=field.help,
                rich_help_panel=self.heading,
                show_default=default,
            )
            annotation: Any = Annotated[field.kind | None, info]
            parameter = flag.removeprefix("--").replace("-", "_")
            yield (
                name,
                inspect.Parameter(
                    parameter,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=annotation,
                ),
            )

    def by_option(self, values: FieldValues, table: str) -> dict[str, dict[str, Any]]:
        """Return values as `Recipe.changed` takes them: option -> dotted name below `table` -> value."""
        return {
            f"--{parameter.name.replace('_', '-')}": {f"{table}.{name}": values[name]}
            for name, parameter in self.parameters()
            if name in values
        }


@dataclass(frozen=True, slots=True)
class _Field:
    """What an option shows of a field."""

    kind: Any  # type of the option; a field that is no plain value takes texts, repeatable
    help: str
    default: str | bool  # False where there is none to show


@cache
def find_field(config: type, name: str) -> _Field:
    """Return what an option shows of a field, or of a field of a field by its dotted name."""
    outer, _, inner = name.partition(".")
    hint = get_type_hints(config)[outer]
    if inner:
        return find_field(hint, inner)
    default = next(field.default for field in fields(config) if field.name == outer)
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    kind, text = _option_type(hint), describe_fields(config).get(outer, "")
    if kind == list[str]:
        text += "; repeatable"
    return _Field(kind, text, str(default) if plain else False)


@cache
def describe_fields(config: type) -> dict[str, str]:
    """Return the first sentence of the documentation of each field, without mark-up."""
    if not is_dataclass(config):
        raise TypeError(f"{config!r} is no dataclass")
    _, _, attributes = inspect.cleandoc(config.__doc__ or "").partition("Attributes:\n")
    described = {}
    for name, text in _ATTRIBUTE.findall(attributes):
        sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
        described[name] = sentence.replace("`", "")
    return described


def _option_type(hint: Any) -> Any:
    """Return the type of an option for a field: plain types as they are, all else a list of texts."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(part for part in get_args(hint) if part is not NoneType)
    plain = hint in (bool, int, float, str, Path) or get_origin(hint) is Literal
    return hint if plain else list[str]


def with_field_options(
    command: Callable[..., Any], common: Sequence[inspect.Parameter] = ()
) -> Callable[..., Any]:
    """Return a command that takes each parameter with `Fields` as one option per field, and has the common options."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[
        str, dict[str, str]
    ] = {}  # parameter of the command -> option -> field
    for parameter in signature.parameters.values():
        options = [
            note
            for note in getattr(parameter.annotation, "__metadata__", ())
            if isinstance(note, Fields)
        ]
        if not options:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        for group in options:
            members = list(group.parameters())
            groups[parameter.name] = {member.name: field for field, member in members}
            parameters += [member for _, member in members]
    parameters += common

    def grouped(**values: Any) -> Any:
        for parameter in common:  # they have acted already
            values.pop(parameter.name, None)
        for name, options in groups.items():
            given = {field: values.pop(option) for option, field in options.items()}
            values[name] = {
                field: value for field, value in given.items() if value is not None
            }
        return command(**values)

    grouped.__name__, grouped.__doc__, grouped.__module__ = (
        command.__name__,
        command.__doc__,
        command.__module__,
    )
    grouped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    grouped.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return grouped
