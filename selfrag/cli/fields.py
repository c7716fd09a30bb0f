"""Options that set fields of a dataclass: type, choices, default and help stand in the class, and nowhere else.

A command takes them as one parameter, `Annotated[FieldValues, Fields(Decoding, "How far", "beam")]`, and gets the
values that were given, by field. The class documents its fields under `Attributes:`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
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
        options: each a field, or FIELD=--OPTION where the option has another name, and FIELD=--OPTION/--SAME where it
            has two. A dot leads into a field that is a
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
            flags = option.split("/") if option else []
            flags = flags or ["--" + name.rpartition(".")[2].replace("_", "-")]
            default = self._default or field.default
            info = typer.Option(
                *flags,
                help=field.help,
                rich_help_panel=self.heading,
                show_default=default,
            )
            annotation: Any = Annotated[field.kind | None, info]
            parameter = flags[0].removeprefix("--").replace("-", "_")
            yield (
                name,
                inspect.Parameter(
                    parameter,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=annotation,
                ),
            )

    def names(self) -> list[str]:
        """Return the options, such as `--beam`."""
        members = [parameter.name for _, parameter in self.parameters()]
        return ["--" + name.replace("_", "-") for name in members]

    def by_option(self, values: FieldValues, table: str) -> dict[str, dict[str, Any]]:
        """Return values as `Recipe.changed` takes them: option -> dotted name below `table` -> value."""
        changes = {}
        for option, (name, _) in zip(self.names(), self.parameters(), strict=True):
            if name in values:
                changes[option] = {f"{table}.{name}": values[name]}
        return changes


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
    hint = _without_none(get_type_hints(config)[outer])
    if inner:
        return find_field(hint, inner)
    default = next(field.default for field in fields(config) if field.name == outer)
    has_default = isinstance(default, str | int | float) and not isinstance(
        default, bool
    )
    text = describe_fields(config).get(outer, "")
    kind = hint
    if hint not in (bool, int, float, str, Path) and not _is_choice(hint):
        of_numbers = get_origin(hint) is tuple and get_args(hint)[0] is int
        kind = list[int] if of_numbers else list[str]
        text += "; repeatable"
    return _Field(kind, text, str(default) if has_default else False)


def _without_none(hint: Any) -> Any:
    """Return the first type of a union, which may be that of a value or None."""
    if get_origin(hint) in (Union, UnionType):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


def _is_choice(hint: Any) -> bool:
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    return is_enum or get_origin(hint) is Literal


@cache
def describe_fields(config: type) -> dict[str, str]:
    """Return the first sentence of the documentation of each field, without mark-up."""
    if not is_dataclass(config):
        raise TypeError(f"{config!r} is no dataclass")
    described = {}
    for base in reversed(config.__mro__):  # its own words win
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition(
            "Attributes:\n"
        )
        for name, text in _ATTRIBUTE.findall(attributes):
            sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
            described[name] = sentence.replace("`", "")
    return described


def with_field_options(
    command: Callable[..., Any], common: Sequence[inspect.Parameter] = ()
) -> Callable[..., Any]:
    """Return a command that takes each parameter with `Fields` as one option per field, and has the common options."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    # Parameter of the command -> option -> field.
    groups: dict[str, dict[str, str]] = {}
    for parameter in signature.parameters.values():
        notes = getattr(parameter.annotation, "__metadata__", ())
        options = [note for note in notes if isinstance(note, Fields)]
        if not options:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        for group in options:
            members = groups.setdefault(parameter.name, {})
            for field, member in group.parameters():
                members[member.name] = field
                parameters.append(member)
    parameters += common

    def grouped(**values: Any) -> Any:
        for parameter, options in groups.items():
            chosen = {}
            for option, field in options.items():
                value = values.pop(option)
                if value is not None:
                    chosen[field] = value
            values[parameter] = chosen
        return command(**values)

    for name in ("__name__", "__doc__", "__module__"):
        setattr(grouped, name, getattr(command, name))
    grouped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    grouped.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return grouped
