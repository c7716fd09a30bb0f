"""Conditions on the columns of passages, such as `year>=2020`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.corpus import Corpus, Scalar, is_scalar
from retrieval.vectors import Mask
from selfrag.common.errors import UserError

OPERATORS = {
    ">=": "greater_equal",
    "<=": "less_equal",
    "!=": "not_equal",
    "=": "equal",
    ">": "greater",
    "<": "less",
    "in": "is_in",
    "has": "match_substring_regex",
}


_CONDITION = re.compile(
    r"\s*([^<>=!\s]+)\s*(>=|<=|!=|==|=|>|<|\sin\b|\shas\b)\s*(.*?)\s*", re.DOTALL
)


_LIST = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,"]*?)\s*(?:,|$)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with values. A passage without a value in that column does not meet it."""

    column: str  # `id`, `title`, or a column of the metadata
    # `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, or `has` of a column that holds lists such as `tea, rome`
    operator: str
    values: tuple[Scalar, ...]  # one value; any number for `in`


def parse_condition(text: str) -> Condition:
    """Return a condition such as `year>=2020`, `lang=en`, `title != "A, B"` or `source in [news, wiki]`.

    Values are JSON where they can be (numbers, true, false, quoted texts), else texts as they stand.
    """
    match = _CONDITION.fullmatch(text)
    if match is None or not match[3]:
        raise UserError(
            f"where={text!r:.80}: give a condition such as year>=2020 or 'source in [news, wiki]'"
        )
    column, operator, value = match[1], match[2].strip().replace("==", "="), match[3]
    if operator != "in":
        return Condition(column, operator, (_value(value),))
    if not (value.startswith("[") and value.endswith("]")):
        raise UserError(
            f"where={text!r:.80}: give the values in brackets, such as {column} in [a, b]"
        )
    texts = filter(None, _LIST.findall(value[1:-1]))
    return Condition(column, operator, tuple(map(_value, texts)))


def _value(text: str) -> Scalar:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if is_scalar(value) or value == "" else text


def allowed_rows(corpus: Corpus, conditions: Sequence[Condition | str]) -> Mask:
    """Return which passages meet all of some conditions, bool [rows]."""
    allowed = np.ones(len(corpus), bool)
    for condition in conditions:
        allowed &= _mask(
            corpus,
            parse_condition(condition) if isinstance(condition, str) else condition,
        )
    return allowed


def _mask(corpus: Corpus, condition: Condition) -> Mask:
    from pyarrow import compute

    if condition.operator not in OPERATORS:
        raise UserError(
            f"operator={condition.operator!r:.40}: choose one of {', '.join(OPERATORS)}"
        )
    parts = corpus.column(condition.column)
    if all(column is None for column, _ in parts):
        known = ", ".join(["id", "title", *corpus.columns()])
        raise UserError(
            f"where: no column {condition.column!r:.80}; the columns are: {known:.400}"
        )
    masks = []
    for column, rows in parts:
        if column is None or not condition.values:
            masks.append(np.zeros(rows, bool))
            continue
        column, values = _comparable(column, condition)
        if condition.operator == "in":
            met = compute.is_in(column, value_set=values)
        elif condition.operator == "has":
            member = re.escape(str(values[0]))
            met = compute.match_substring_regex(column, f"(^|, ){member}($|, )")
        else:
            met = getattr(compute, OPERATORS[condition.operator])(column, values[0])
        masks.append(met.fill_null(False).to_numpy())
    return np.concatenate(masks)


def _comparable(column: Any, condition: Condition) -> tuple[Any, Any]:
    """Return a column and the values of a condition in one type; texts that are numbers are compared as numbers."""
    import pyarrow as pa

    values = condition.values
    numeric = all(type(value) in (int, float) for value in values)
    is_text = pa.types.is_large_string(column.type)
    if condition.operator == "has":
        return column.cast(pa.large_string()), [str(values[0])]
    try:
        if is_text and numeric and condition.column not in ("id", "title"):
            try:
                return column.cast(pa.float64()), pa.array(
                    map(float, values), pa.float64()
                )
            except pa.ArrowInvalid:
                if condition.operator not in ("=", "!=", "in"):
                    raise
        if is_text:
            texts = [
                value if isinstance(value, str) else json.dumps(value)
                for value in values
            ]
            return column, pa.array(texts, column.type)
        if numeric != (not pa.types.is_boolean(column.type)):
            raise pa.ArrowInvalid("another type")
        if numeric:
            kind = (
                pa.float64()
                if any(isinstance(value, float) for value in values)
                else column.type
            )
            return column.cast(kind, safe=False), pa.array(values, kind)
        return column, pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        kinds = {pa.large_string(): "texts", pa.bool_(): "truth values"}
        content = kinds.get(column.type, "numbers")
        compared = f"{condition.operator} cannot compare them with {', '.join(map(str, values)):.60}"
        raise UserError(
            f"where: column {condition.column!r:.60} holds {content}; {compared}"
        ) from error
