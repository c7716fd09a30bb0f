"""Commands whose values are checked before any of their code runs: one door for every option and argument.

What only one command can know about its values it checks itself.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.models import CommandFunctionType

from retrieval.atomic import check_room
from retrieval.checks import choice, web_address
from retrieval.checks import whole as whole_number
from selfrag.engines.select import ENGINES
from selfrag.errors import UserError
from selfrag.untrusted import whole

_WRITTEN = ("out", "trace", "write")
"""Names of options for what a command writes."""
_ADDRESSES = ("engine", "endpoint", "url")
_SEEDS, _NUMBERS = (0, 2**32 - 1), (-(2**31), 2**31)
"""Bounds: NumPy takes no other seeds, and nothing here counts further."""


class Commands(typer.Typer):
    """A `typer.Typer` that checks what it hands to its commands.

    A command is refused, with one line, where a number is not finite or beyond every use, a seed is negative, text
    holds a NUL character, a file is a pipe, a device or a link that leads to itself, or an output cannot be written.
    Halves of characters in texts (lone surrogates) are replaced.
    """

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """As `typer.Typer.command`."""
        register = super().command(name, **settings)

        def decorate(function: CommandFunctionType) -> CommandFunctionType:
            @functools.wraps(function)
            def checked(**values: Any) -> Any:
                return function(**{key: _checked(key.replace("_", "-"), value) for key, value in values.items()})

            register(checked)
            return function

        return decorate


def _checked(name: str, value: Any) -> Any:
    """A value as its command may see it.

    Raises:
        UserError: no command can work with it.
    """
    if isinstance(value, list | tuple):
        return type(value)(_checked(name, one) for one in value)
    if isinstance(value, int) and not isinstance(value, bool):
        whole_number(f"--{name}", value, *(_SEEDS if name == "seed" else _NUMBERS))
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"--{name}={value}: give a finite number")
    elif isinstance(value, Path):
        if str(value) != whole(str(value)):
            raise UserError(f"{shown(value)} is no name in UTF-8; rename it")
        _place(str(value))
        if name in _WRITTEN:
            _writable(value)
            check_room(value)
    elif isinstance(value, str):
        if name in _ADDRESSES and "://" in value:
            web_address(value)
        elif name == "engine":
            choice("--engine", value, ENGINES)
        value = whole(value)
        for text in dict.fromkeys((value, value.partition("=")[2])):  # NAME=FILE, too
            _place(text)
    return value


def _place(text: str) -> None:
    """Refuse what would be read without end, or leads nowhere, if it is a file; other texts pass."""
    if "\0" in text:
        raise UserError(f"{shown(text)} holds a NUL character; leave it out")
    try:
        mode = Path(text).stat().st_mode if text else stat.S_IFREG
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{shown(text)} is a link that leads to itself; name what it should lead to") from error
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{shown(text)} is neither a file nor a folder; name one of them")


def _writable(path: Path) -> None:
    """Try whether something can be made at a place, and leave nothing there.

    Raises:
        UserError: it cannot.
    """
    try:
        folder = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
        if path.is_file():
            folder = folder.parent
        elif not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write {shown(path)}: {error.strerror}") from error


def shown(value: object, most: int = 120) -> str:
    """A value as it was typed, cut where it is long."""
    text = str(value)
    return repr(text) if len(text) <= most else f"{text[:most]!r} (of {len(text):,} characters)"
