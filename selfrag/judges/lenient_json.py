"""Reads the JSON that a model wrote: finds it, remembers where each value stands, and keeps what a cut-off left.

Offsets are what a likelihood needs and no library gives: the tokens of a value are found by its place, never by its
spelling.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from selfrag.common.untrusted import replace_surrogates as replace_surrogates

JsonPath: TypeAlias = tuple[str | int | None, ...]
"""Keys and indices from the root; None stands for every element."""

_BLANK = " \t\r\n"
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_FENCE = re.compile(r"```\w*\s*(?:```)?")
_NEXT_RECORD = re.compile(r"\}\s*,\s*(?=\{)")
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BEGINNING = re.compile(r"[a-z]+|[\d.eE+-]+")
_CLOSED = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRINGS = json.JSONDecoder(strict=False)
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value and its place."""

    value: Any  # the plain value; of an object or array cut off, what was there
    begin: int  # offset of its first character (the quote of a string) in `JsonReading.text`
    end: int  # offset after its last character
    complete: bool = True  # False where the text ended inside it
    # child nodes of an object, by key (the last of equal keys)
    members: dict[str, JsonNode] | None = None
    items: tuple[JsonNode, ...] | None = None  # child nodes of an array

    def at(self, path: JsonPath) -> Iterator[tuple[tuple[str | int, ...], JsonNode]]:
        """Yield the nodes that a path leads to, each with its concrete path."""
        if not path:
            yield (), self
            return
        pairs: list[tuple[str | int, JsonNode]] = [
            *(self.members or {}).items(),
            *enumerate(self.items or ()),
        ]
        for key, child in pairs:
            if path[0] is None or (path[0] == key and type(path[0]) is type(key)):
                for below, node in child.at(path[1:]):
                    yield (key, *below), node


@dataclass(frozen=True, slots=True)
class JsonReading:
    """What was found in a text."""

    root: JsonNode | None  # the first JSON value; None if there is none
    text: str  # the text that offsets refer to: the given one, or the inner one of double-encoded JSON
    inner: bool = False  # whether it was double-encoded; offsets are then no offsets into what the model wrote
    # whether there is more than the value, white space and a code fence
    extra: bool = False


class _CutOffError(Exception):
    """Nothing of a value is there."""


class _InvalidError(Exception):
    """Not JSON from here on."""


class _TooDeepError(Exception):
    """Nested more deeply than any reply has a reason to be; the argument is where."""


def read(text: str) -> JsonReading:
    """Return the first JSON value of a text: an object or an array anywhere, or a scalar that is all of the text.

    A string that holds an object or an array is decoded once more, and so is that. The time is linear in the text,
    whatever it says.
    """
    reading = _Reader(text).first()
    for _ in range(2):
        root = reading.root
        if (
            root is None
            or not isinstance(root.value, str)
            or not root.value.lstrip(_BLANK).startswith(("{", "["))
        ):
            break
        inner = _Reader(root.value).first()
        if inner.root is None:
            break
        reading = JsonReading(
            inner.root, inner.text, inner=True, extra=reading.extra or inner.extra
        )
    return reading


class _Reader:
    """Reads one text. What stands at a place is read once, however many values around it turn out to be none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._known: dict[int, JsonNode | type[_CutOffError | _InvalidError]] = {}
        self._records: list[int] | None = None
        # from here on no record that follows another one is JSON
        self._hopeless = len(text)

    def first(self) -> JsonReading:
        """See `read`, without decoding strings again."""
        text = self.text
        body = text.strip(_BLANK)
        if body and body[0] not in "{[":
            try:
                node = self._value(0, 0)
            except (_CutOffError, _InvalidError):
                pass
            else:
                if not text[node.end :].strip(_BLANK):
                    return JsonReading(node, text)
        reached = 0
        for match in re.finditer(r"[{\[]", text):
            if match.start() < reached:
                continue
            try:
                node = self._value(match.start(), 0)
            except _TooDeepError as error:
                reached = error.args[0]
                continue
            except (_CutOffError, _InvalidError):
                continue
            around = (text[: node.begin] + text[node.end :]).strip(_BLANK)
            return JsonReading(
                node, text, extra=bool(around) and _FENCE.fullmatch(around) is None
            )
        return JsonReading(None, text)

    def _skip(self, at: int) -> int:
        while at < len(self.text) and self.text[at] in _BLANK:
            at += 1
        return at

    def _value(self, at: int, depth: int) -> JsonNode:
        at = self._skip(at)
        if at >= len(self.text):
            raise _CutOffError
        known = self._known.get(at)
        if isinstance(known, JsonNode):
            return known
        if known is not None:
            raise known
        if depth > _DEEPEST:
            raise _TooDeepError(at)
        try:
            node = self._read(at, depth)
        except (_CutOffError, _InvalidError) as error:
            self._known[at] = type(error)
            raise
        self._known[at] = node
        return node

    def _read(self, at: int, depth: int) -> JsonNode:
        match self.text[at]:
            case "{":
                return self._object(at, depth)
            case "[":
                return self._array(at, depth)
            case '"':
                return self._string(at)
            case _:
                return self._scalar(at)

    def _scalar(self, at: int) -> JsonNode:
        text = self.text
        match = _SCALAR.match(text, at)
        if match is not None:
            try:
                value = json.loads(match.group())
            except ValueError as error:  # thousands of digits
                raise _InvalidError from error
            if isinstance(value, float) and not math.isfinite(value):
                raise _InvalidError
            after = text[match.end() : match.end() + 1]
            if not (after.isalnum() or (after in ("_", ".") and after)):
                return JsonNode(value, at, match.end())
        beginning = _BEGINNING.match(text, at)
        if beginning is not None and beginning.end() == len(text):
            raise _CutOffError
        raise _InvalidError

    def _string(self, at: int) -> JsonNode:
        closing = _CLOSED.match(self.text, at + 1)
        if closing is None:
            return JsonNode(
                _unfinished(self.text[at + 1 :]), at, len(self.text), complete=False
            )
        try:
            value = _STRINGS.decode(f'"{closing.group()}')
        except (
            json.JSONDecodeError
        ):  # an escape that JSON does not know, such as \': the character is meant
            value = _STRINGS.decode(f'"{_BAD_ESCAPE.sub("", closing.group())}')
        return JsonNode(replace_surrogates(value), at, closing.end())

    def _array(self, begin: int, depth: int) -> JsonNode:
        text = self.text
        items: list[JsonNode] = []
        intact = True
        first_broken = len(text)

        def node(end: int, complete: bool) -> JsonNode:
            values = [item.value for item in items]
            complete = complete and intact and all(item.complete for item in items)
            return JsonNode(values, begin, end, complete, items=tuple(items))

        at = self._skip(begin + 1)
        while True:
            at = self._skip(at)
            if at >= len(text):
                return node(len(text), False)
            if text[at] == "]":
                return node(at + 1, True)
            try:
                item = self._value(at, depth + 1)
                end = self._skip(item.end)
                if end < len(text) and text[end] not in ",]{":
                    raise _InvalidError
            except _CutOffError:
                return node(len(text), False)
            except _InvalidError:
                # A broken record costs itself: continue with the next one.
                first_broken = min(first_broken, at)
                following = self._record_after(at, None if items else first_broken)
                if following is None and items:
                    return node(len(text), False)
                if following is None:
                    raise
                intact = False
                at = following
                continue
            if _unfinished_number(item, end, text):
                return node(len(text), False)
            items.append(item)
            if not item.complete and end >= len(text):
                return node(len(text), False)
            intact = intact and text[end : end + 1] in (",", "]")
            at = end + 1 if text[end : end + 1] == "," else end

    def _record_after(self, at: int, first: int | None) -> int | None:
        """Return where the next record begins that follows another one; None where there is none.

        `first` is where the records of an array began that has no whole one yet. It gives up where an earlier such
        array found none either.
        """
        if self.text[at] != "{" or (first is not None and at >= self._hopeless):
            return None
        if self._records is None:
            self._records = [match.end() for match in _NEXT_RECORD.finditer(self.text)]
        following = bisect_left(self._records, at + 2)
        if following < len(self._records):
            return self._records[following]
        if first is not None:
            self._hopeless = min(self._hopeless, first)
        return None

    def _object(self, begin: int, depth: int) -> JsonNode:
        text = self.text
        members: dict[str, JsonNode] = {}

        def node(end: int, complete: bool) -> JsonNode:
            values = {key: child.value for key, child in members.items()}
            complete = complete and all(child.complete for child in members.values())
            return JsonNode(values, begin, end, complete, members=members)

        at = begin + 1
        while (at := self._skip(at)) < len(text):
            if text[at] == "}":
                return node(at + 1, True)
            key, colon = self._key(at)
            if not key.complete or colon >= len(text):
                break
            try:
                child = self._value(colon + 1, depth + 1)
            except _CutOffError:
                break
            at = self._skip(child.end)
            if _unfinished_number(child, at, text):
                break
            members[key.value] = child
            if text[at : at + 1] == ",":
                at += 1
            elif text[at : at + 1] not in ("}", ""):
                raise _InvalidError
        return node(len(text), False)

    def _key(self, at: int) -> tuple[JsonNode, int]:
        """Read a key, and where its colon is (the end of the text if that is missing)."""
        text = self.text
        if text[at] != '"':
            raise _InvalidError
        key = self._string(at)
        colon = self._skip(key.end)
        if key.complete and colon < len(text) and text[colon] != ":":
            raise _InvalidError
        return key, colon


def _unfinished(body: str) -> str:
    """Return the value of a string that lacks its closing quote, perhaps in the middle of an escape."""
    for cut in range(0, min(len(body), 12) + 1):
        try:
            return replace_surrogates(_STRINGS.decode(f'"{body[: len(body) - cut]}"'))
        except json.JSONDecodeError:
            continue
    return ""


def _unfinished_number(node: JsonNode, end: int, text: str) -> bool:
    """Return whether the text ends right after a number, which may have lost digits."""
    return (
        end >= len(text)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )
