"""One large JSON array of objects, read object by object: the public files are up to a gigabyte. Knows no schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from retrieval.errors import UserError

_CHUNK = 1 << 20
_SPACE = " \t\n\r"


class _Window:
    """The part of a stream that is not read yet, and the line it begins at. Grows only as far as one object needs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.text = ""
        self.position = 0
        self.line = 1
        self.ended = False

    def more(self) -> None:
        """Read on; at least as much as is held already, so that a long object is not parsed again too often."""
        self.text = self.text[self.position :]
        self.position = 0
        chunk = self.stream.read(max(_CHUNK, len(self.text)))
        self.ended = not chunk
        self.text += chunk

    def next_character(self) -> str:
        """The next character that is no white space, not yet taken; empty at the end."""
        while True:
            start = self.position
            while self.position < len(self.text) and self.text[self.position] in _SPACE:
                self.position += 1
            self.line += self.text.count("\n", start, self.position)
            if self.position < len(self.text) or self.ended:
                return self.text[self.position : self.position + 1]
            self.more()

    def take(self, end: int) -> None:
        self.line += self.text.count("\n", self.position, end)
        self.position = end


def begins_array(stream: TextIO) -> bool:
    """Whether the first character that is no white space opens an array. The stream is read; open it anew."""
    return _Window(stream).next_character() == "["


def read_array(stream: TextIO, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line (from 1) and value of each object.

    Args:
        stream: the text.
        name: of the file, for messages.

    Raises:
        UserError: the text is no JSON array of objects, or ends too early; the message names `name:line`.
    """
    decoder, window = json.JSONDecoder(), _Window(stream)
    if window.next_character() != "[":
        raise UserError(f"{name}:{window.line}: not a JSON array")
    window.take(window.position + 1)
    character = window.next_character()
    while character != "]":
        line, record = window.line, _decode(decoder, window, name)
        if not isinstance(record, dict):
            raise UserError(f"{name}:{line}: a row must be an object, not {type(record).__name__}")
        yield line, record
        character = window.next_character()
        if character == ",":
            window.take(window.position + 1)
            if window.next_character() == "]":
                raise UserError(f"{name}:{window.line}: a comma without a row after it")
        elif character != "]":
            raise UserError(
                f"{name}:{window.line}: {f'{character!r} between two rows' if character else 'the array is cut off'}"
            )
    window.take(window.position + 1)
    if window.next_character():
        raise UserError(f"{name}:{window.line}: text after the array")


def _decode(decoder: json.JSONDecoder, window: _Window, name: str) -> Any:
    while True:
        try:
            record, end = decoder.raw_decode(window.text, window.position)
        except json.JSONDecodeError as error:
            if window.ended:
                line = window.line + window.text.count("\n", window.position, error.pos)
                raise UserError(f"{name}:{line}: not JSON ({error.msg})") from error
            window.more()
            continue
        except (RecursionError, ValueError) as error:
            raise UserError(f"{name}:{window.line}: JSON that cannot be read ({error})") from error
        window.take(end)
        return record
