"""Decoded JSON and TOML as typed values: one validator, and one line about whatever does not fit.

Types are dataclasses, typed dictionaries and what they are made of. Numbers are no text and truth values are no
numbers; lists become tuples, and texts become members of an enumeration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_type_hints

from selfrag.common.errors import UserError
from selfrag.common.reading import mended_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
_WORDS = {
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "a valid list": "a list",
    "a valid dictionary": "an object",
    "None": "left out",
}
"""Words of pydantic, and ours."""
Others = Literal["forbid", "ignore", "allow"]
_SUBJECT = re.compile(r"^(?:Input|String|Value|List|Tuple|Dictionary) should ")
_CLASS = re.compile(r" or (?:an )?(?:instance of \w+|object to extract fields from)")


def validate(
    kind: type[T],
    values: object,
    where: str | Callable[[str], str] = "",
    *,
    others: Others = "forbid",
    mended: bool = False,
) -> T:
    """Return decoded values as a `kind`, whose own checks run too.

    Args:
        kind: a dataclass, a typed dictionary, or a type made of them.
        values: what a JSON or TOML text holds.
        where: what the values are, for the error; or a function that names the place of a fault in it.
        others: what happens to fields that the `kind` does not have; `allow` keeps them as they are.
        mended: replace lone surrogates in texts by U+FFFD; else they are refused.

    Raises:
        UserError: the first value that does not fit, in one line.
    """
    from pydantic import ValidationError

    try:
        text = json.dumps([values], default=str)
        text = mended_json(text) if mended else text
        checked: list[T] = _adapter(cast(Any, kind), others).validate_json(
            text, strict=True
        )
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part)[:40] for part in details["loc"][1:])
        known = _known(kind, details["loc"][1:-1])
        raise UserError(_fault(details, _name(where, place), known)) from None
    except UserError as error:
        if callable(where) or not where:
            raise
        raise UserError(f"{where}: {error}") from error
    except RecursionError:
        raise UserError(f"{_name(where, '')} is nested too deeply") from None
    return checked[0]


def describe_errors(errors: Sequence[Any], values: object) -> str:
    """Return one line on the innermost error of decoded values: its place in them, and what belongs there."""
    details = max(errors, key=lambda error: len(error["loc"]))
    place: list[str] = []
    inner: Any = values
    for part in details["loc"]:
        try:
            inner = inner[part]
        except (LookupError, TypeError):  # the name of a type that was tried
            continue
        place.append(str(part)[:40])
    if details["type"] == "missing":
        place += map(str, details["loc"][-1:])
    body = "the body"
    fault = _fault(details, ".".join(place) or body, ())
    return fault.removeprefix(f"{body}: ")


def _name(where: str | Callable[[str], str], place: str) -> str:
    """Return what to call the place of a fault."""
    if callable(where):
        return where(place)
    if not place:
        return where or "a row"
    if where:
        return f"{where}: {place!r}"
    return repr(place)


@cache
def _adapter(kind: Any, others: Others) -> TypeAdapter[list[Any]]:
    from pydantic import ConfigDict, TypeAdapter

    # A list passes its settings on to the dataclasses inside it, which have none of their own.
    return TypeAdapter(list[kind], config=ConfigDict(extra=others, allow_inf_nan=False))


def _fault(details: ErrorDetails, name: str, known: Iterable[str]) -> str:
    match details["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            names = ", ".join(known)
            return f"{name} is unknown; known: {names}".removesuffix("; known: ")
        case "json_invalid":
            return f"{name} holds half of a character (a lone surrogate), which no file can hold"
        case "value_error":
            text = details["msg"].removeprefix("Value error, ")
            separator = " " if text.startswith("must ") else ": "
            return f"{name}{separator}{text}"
    message, value = _SUBJECT.sub("must ", details["msg"]), details["input"]
    message = _CLASS.sub("", message)
    for word, ours in _WORDS.items():
        message = message.replace(word, ours)
    if message.startswith("must have"):
        return f"{name} {message.replace(' after validation', '')}"
    shown = (
        f"a {type(value).__name__}"
        if isinstance(value, Mapping | list)
        else f"{value!r:.60}"
    )
    return f"{name} {message}, not {shown}"


def _known(kind: Any, path: Iterable[str | int]) -> Iterable[str]:
    """Return the names of the fields of the object at a path, as far as the types tell."""
    for part in path:
        if isinstance(part, int):
            continue
        if not hasattr(kind, "__annotations__"):  # a list of objects
            kind = next(iter(get_args(kind)), None)
        hint = get_type_hints(kind).get(part) if isinstance(kind, type) else None
        kind = next(
            (
                inner
                for inner in (hint, *get_args(hint))
                if hasattr(inner, "__annotations__")
            ),
            None,
        )
        if kind is None:
            return ()
    return getattr(kind, "__annotations__", ())
