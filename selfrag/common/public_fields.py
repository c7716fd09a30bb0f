"""Fields of public data sets: `rows.toml` says how each set names them, and `PublicRow` reads them strictly.

A field is read when it is asked for, so that two uses of a set may need different fields of its rows.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

from selfrag.common.checks import parse_value
from selfrag.common.errors import UserError

PublicRecord: TypeAlias = Mapping[str, Any]
TRUTH = {"true": "true", "supports": "true", "false": "false", "refutes": "false"}
"""Verdicts as public files write them, without their case."""


class UnusableError(Exception):
    """Raised while one row is read: it is well formed, but not of use. `str(error)` is the reason."""


@dataclass(frozen=True, slots=True)
class RowSchema:
    """One public data set, or several that have the same rows."""

    title: str  # of the set, with its paper
    licence: str  # of its texts
    source: str  # where to get it
    # our name of a field -> its kind and its names there, or the fields of a list of objects
    fields: Mapping[str, Any]


@cache
def row_schemas() -> Mapping[str, RowSchema]:
    """Return the sets of `rows.toml` by name."""
    tables = tomllib.loads(
        files(__package__).joinpath("rows.toml").read_text(encoding="utf-8")
    )
    return {name: RowSchema(**table) for name, table in tables.items()}


class PublicRow:
    """One row under our names of its fields; each is checked when it is read.

    Args:
        fields: of the row, as in `RowSchema`.
        record: the row as it came.
    """

    def __init__(self, fields: Mapping[str, Any], record: PublicRecord) -> None:
        self._fields, self._record = fields, record

    @classmethod
    def of(cls, name: str, record: PublicRecord) -> PublicRow:
        """Return a row of the set of this name."""
        return cls(row_schemas()[name].fields, record)

    def __getitem__(self, name: str) -> Any:
        field = self._fields[name]
        if isinstance(field, Mapping):
            return [
                PublicRow(field, row) for row in objects(self._record, field["each"])
            ]
        kind, keys = field.split(" ")
        return _read(kind, tuple(keys.split("|")), self._record)

    def values(self, *names: str) -> dict[str, Any]:
        """Return several fields."""
        return {name: self[name] for name in names}


def _read(kind: str, keys: tuple[str, ...], record: PublicRecord) -> Any:
    if kind.endswith("?") and all(record.get(key) is None for key in keys):
        return ""
    return _KINDS[kind.rstrip("?")](record, first_key(record, keys))


def first_key(record: PublicRecord, keys: tuple[str, ...]) -> str:
    """Return the first of the keys that the record has, one that is not null if there is any.

    Raises:
        UserError: the record has none of them; names those it has.
    """
    present = [key for key in keys if key in record]
    if not present:
        known = ", ".join(map(repr, list(record)[:12])) or "no keys"
        raise UserError(f"no {' or '.join(map(repr, keys))} in a row with {known}")
    return next((key for key in present if record[key] is not None), present[0])


def value(record: PublicRecord, key: str) -> Any:
    """Return what stands under a key.

    Raises:
        UserError: nothing does; the message lists the keys there are.
    """
    return record[first_key(record, (key,))]


def text(record: PublicRecord, key: str) -> str:
    """Return a text.

    Raises:
        UserError: it is something else, or missing.
    """
    written = value(record, key)
    if not isinstance(written, str):
        raise UserError(f"{key!r} must be text, not {written!r:.60}")
    return written


def identifier(record: PublicRecord, key: str) -> str:
    """Return a text or whole number as text; never blank.

    Raises:
        UserError: it is something else, or missing.
    """
    name = value(record, key)
    if (
        isinstance(name, bool)
        or not isinstance(name, str | int)
        or not str(name).strip()
    ):
        raise UserError(f"{key!r} must be a name or a whole number, not {name!r:.60}")
    return str(name).strip()


def objects(record: PublicRecord, key: str) -> list[PublicRecord]:
    """Return a list of objects; one object of equally long lists, which Hugging Face makes of it, is the same.

    Raises:
        UserError: it is something else.
    """
    rows = value(record, key)
    if (
        isinstance(rows, Mapping)
        and rows
        and all(isinstance(column, list) for column in rows.values())
    ):
        if len({len(column) for column in rows.values()}) > 1:
            raise UserError(f"{key!r} has lists of different lengths")
        return [
            dict(zip(rows, row, strict=True))
            for row in zip(*rows.values(), strict=True)
        ]
    return list_of(rows, key, Mapping, "objects")


def list_of(values: Any, key: str, kind: type, what: str) -> list[Any]:
    """Return the value of a key if it is a list of one kind.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(values, list) or not all(
        isinstance(item, kind) for item in values
    ):
        raise UserError(f"{key!r} must be a list of {what}, not {values!r:.60}")
    return values


def _filled(record: PublicRecord, key: str) -> str:
    written = text(record, key)
    if not written.strip():
        raise UserError(f"{key!r} must be text that is not empty, not {written!r:.60}")
    return written


def _texts(record: PublicRecord, key: str) -> list[str]:
    return list_of(record[key], key, str, "texts")


def _answers(record: PublicRecord, key: str) -> tuple[str, ...]:
    """Return gold answers: a list of texts, one text, or a list that is written as JSON or as Python."""
    written = record[key]
    if isinstance(written, str):
        written = _written_list(written)
    return _gold(written, key)


def _written_list(written: str) -> Any:
    if written.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(written)
        values = parse_value(written)
        if isinstance(values, list):
            return values
    return [written]


def _answer_sets(record: PublicRecord, key: str) -> tuple[tuple[str, ...], ...]:
    """Return several gold answers, each with its ways of being written."""
    sets = list_of(record[key], key, list, "lists of texts")
    if not sets:
        raise UserError(f"{key!r} is empty: nothing to score the answer by")
    return tuple(_gold(forms, key) for forms in sets)


def _gold(values: Any, key: str) -> tuple[str, ...]:
    texts = list_of(values, key, str, "texts")
    if not texts:
        raise UserError(f"{key!r} is empty: nothing to score the answer by")
    if not all(written.strip() for written in texts):
        raise UserError(f"{key!r} has a blank answer")
    return tuple(texts)


def _truth(record: PublicRecord, key: str) -> str:
    """Return `true` or `false`; FEVER's verdicts are understood, and one of these as the only entry of a list."""
    written = record[key]
    if isinstance(written, list) and len(written) == 1:
        written = written[0]
    verdict = ""
    if isinstance(written, str | bool):
        verdict = str(written).strip().casefold()
    if verdict not in TRUTH:
        raise UserError(
            f"{key!r} must be true or false (or SUPPORTS, REFUTES), not {written!r:.60}"
        )
    return TRUTH[verdict]


_KINDS: Mapping[str, Callable[[PublicRecord, str], Any]] = {
    "value": value,
    "text": text,
    "filled": _filled,
    "id": identifier,
    "texts": _texts,
    "answers": _answers,
    "sets": _answer_sets,
    "truth": _truth,
}
