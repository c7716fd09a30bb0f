"""What a command prints: one JSON object with `--json`, else text for people.

A command that is annotated to return a `CommandResult` has the option `--json`, and what it returns is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from selfrag.common.untrusted import clean, printable, replace_surrogates

USER_ERROR = 2
UNREADABLE = 3
"""The command did its work, but left out files that cannot be read, as `--skip-unreadable` asks for."""
ALL_FAILED = 4
"""The command ended, but no item of a system or of a figure has a result."""
INTERRUPTED = 130
UNREAD = 141
"""As of a program that SIGPIPE ends."""
_JSON = "selfrag.json"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command.

    Attributes:
        value: what `--json` prints; records, paths and NumPy values are allowed in it.
        shown: text for people, or a function that prints it.
        code: exit code; where it is 0 and everything of some kind failed, `ALL_FAILED` takes its place.
        failures: what has no result; each is a line on the error stream.
    """

    value: Any
    shown: str | Callable[[], None] = ""
    code: int = 0
    failures: Sequence[Any] = ()

    @property
    def exit_code(self) -> int:
        """Return the code, or `ALL_FAILED` where it is 0 and no item of a system has a result."""
        if any(failure.is_total for failure in self.failures):
            return self.code or ALL_FAILED
        return self.code


def set_json(ctx: typer.Context, as_json: bool) -> None:
    """Remember for the command whether `--json` was given."""
    ctx.meta[_JSON] = as_json


def wants_json(ctx: typer.Context) -> bool:
    """Return whether `--json` was given."""
    return bool(ctx.meta.get(_JSON))


def print_result(ctx: typer.Context, result: CommandResult) -> None:
    """Print a result as the command line asks for it."""
    if wants_json(ctx):
        sys.stdout.write(to_json(clean(to_plain(result.value))) + "\n")
    elif callable(result.shown):
        result.shown()
    elif result.shown:
        sys.stdout.write(printable(result.shown) + "\n")
    for failure in result.failures:
        sys.stderr.write(f"{printable(str(failure))}\n")


def to_json(value: Any) -> str:
    """Return JSON in one line, which every parser reads: halves of characters and numbers such as NaN are replaced."""
    return replace_surrogates(
        json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False)
    )


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is not finite becomes null."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, inf_nan_mode="null", fallback=_fallback)


def _fallback(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of JSON")
