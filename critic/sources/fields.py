"""Strict access to the values of a row: each function returns one type or says what stands there instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrieval.errors import UserError


def value(record: Mapping[str, Any], key: str) -> Any:
    """What stands under a key.

    Raises:
        UserError: nothing does; the message lists the keys there are.
    """
    if key not in record:
        raise UserError(f"no {key!r} in a row with {', '.join(map(repr, list(record)[:12])) or 'no keys'}")
    return record[key]


def text(record: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text, or `default` where the key is missing or null.

    Raises:
        UserError: it is something else, or missing without a default.
    """
    found = record.get(key) if default is not None else value(record, key)
    if found is None and default is not None:
        return default
    if not isinstance(found, str):
        raise UserError(f"{key!r} must be text, not {found!r:.60}")
    return found


def identifier(record: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text or whole number as text; never blank.

    Raises:
        UserError: it is something else, or missing without a default.
    """
    found = record.get(key, default) if default is not None else value(record, key)
    if isinstance(found, bool) or not isinstance(found, str | int) or not str(found).strip():
        raise UserError(f"{key!r} must be a name or a whole number, not {found!r:.60}")
    return str(found).strip()


def objects(record: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A list of objects; one object of equally long lists, which Hugging Face makes of it, is the same.

    Raises:
        UserError: it is something else.
    """
    found = value(record, key)
    if isinstance(found, Mapping) and found and all(isinstance(column, list) for column in found.values()):
        if len({len(column) for column in found.values()}) > 1:
            raise UserError(f"{key!r} has lists of different lengths")
        return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise UserError(f"{key!r} must be a list of objects, not {found!r:.60}")
    return found


def mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """One object.

    Raises:
        UserError: it is something else.
    """
    found = value(record, key)
    if not isinstance(found, Mapping):
        raise UserError(f"{key!r} must be an object, not {found!r:.60}")
    return found


def texts(record: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts.

    Raises:
        UserError: it is something else.
    """
    found = value(record, key)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise UserError(f"{key!r} must be a list of texts, not {found!r:.60}")
    return found
