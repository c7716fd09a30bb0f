"""Dataclasses from plain values, such as a file's JSON: every field is checked by its type. Knows no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from retrieval.errors import UserError

T = TypeVar("T")


def record(kind: type[T], values: object, where: str) -> T:
    """An object of a dataclass whose fields are text, numbers, truth values, dictionaries of them, or such dataclasses.

    Args:
        kind: the dataclass; its own checks run too.
        values: one value a field; fields with a default may be left out.
        where: what the values are, for the message.

    Raises:
        UserError: no such values: names the field and what it holds.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be an object, not {type(values).__name__}")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise UserError(f"{where} has the unknown field {name!r:.60}; known: {', '.join(known)}")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{where} has no {name}")
    given = {name: _value(hints[name], value, f"{where}: {name}") for name, value in values.items()}
    try:
        return kind(**given)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return record(hint, value, where)
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must be an object, not {type(value).__name__} {value!r:.60}")
        of_key, of_value = get_args(hint)
        return {_value(of_key, key, where): _value(of_value, one, f"{where} {key!r:.60}") for key, one in value.items()}
    options = get_args(hint) or (hint,)
    if float in options and type(value) is int:
        return value
    if type(value) not in options:
        wanted = " or ".join("null" if one is type(None) else one.__name__ for one in options)
        raise UserError(f"{where} must be {wanted}, not {type(value).__name__} {value!r:.60}")
    return value
