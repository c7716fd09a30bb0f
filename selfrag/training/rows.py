"""The training record: an instruction and its target as reflection tokens, passages and text, one JSON line a row.

Knows the file format and its rules of form. Knows no tokenizer, no masking and no data set; spacing, paragraph
markers and EOS are the renderer's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.jsonl import read_identified, write_jsonl
from selfrag.reflection.labels import GROUPS

REFLECTION_TOKENS: frozenset[str] = frozenset(token for labels in GROUPS for token in labels.tokens)
"""The 13 tokens a target may name. The two paragraph markers come with a passage and are never written by hand."""


@dataclass(frozen=True, slots=True)
class Token:
    """One reflection token of the target, such as `[Relevant]`."""

    token: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One passage of the target; the renderer puts the paragraph markers around it."""

    passage: Passage


@dataclass(frozen=True, slots=True)
class Text:
    """Text the model shall write."""

    text: str


Part: TypeAlias = Token | Evidence | Text


@dataclass(frozen=True, slots=True)
class Row:
    """One training example.

    Attributes:
        id: unique in its file.
        source: where the row came from, as `data set/kind`; counts and reports go by it.
        instruction: what the user asked, without prompt layout.
        target: what the model shall produce, in order, without EOS.
        weight: factor on this row's loss, above 0.
    """

    id: str
    source: str
    instruction: str
    target: tuple[Part, ...]
    weight: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON. A weight of 1 is left out."""
        record: dict[str, Any] = {
            "id": self.id,
            "source": self.source,
            "instruction": self.instruction,
            "target": [_part_dict(part) for part in self.target],
        }
        if self.weight != 1.0:
            record["weight"] = self.weight
        return record


def parse_row(record: dict[str, Any]) -> Row:
    """Check one decoded JSON object and make it a row.

    Raises:
        UserError: a key is missing, unknown or of the wrong type, a token is unknown, or the target is empty.
    """
    _only(record, {"id", "source", "instruction", "target"}, {"weight"}, "row")
    target = record["target"]
    if not isinstance(target, list) or not target:
        raise UserError("'target' must be a list of at least one part")
    weight = record.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not (math.isfinite(weight) and weight > 0):
        raise UserError(f"'weight' must be a number above 0, not {weight!r}")
    return Row(
        _text(record, "id"),
        _text(record, "source"),
        _text(record, "instruction"),
        tuple(_part(part) for part in target),
        float(weight),
    )


def read_rows(path: str | Path) -> Iterator[Row]:
    """Read a JSONL file of rows (`.gz` allowed), strictly.

    Raises:
        UserError: the file cannot be read, a line is no row, or an id occurs twice; the message names `file:line`.
    """
    return read_identified(path, parse_row)


def write_rows(path: str | Path, rows: Iterable[Row]) -> int:
    """Write rows as JSONL; the file appears under its name only when it is complete. Returns the number of rows."""
    return write_jsonl(path, (row.as_dict() for row in rows))


def _part(record: object) -> Part:
    if not isinstance(record, dict) or len(record) != 1:
        raise UserError(f"a target part has exactly one of 'token', 'passage', 'text', not {record!r:.80}")
    ((kind, value),) = record.items()
    if kind == "token":
        if not isinstance(value, str) or value not in REFLECTION_TOKENS:
            raise UserError(f"unknown reflection token {value!r}")
        return Token(value)
    if kind == "text":
        return Text(_text(record, "text"))
    if kind == "passage":
        if not isinstance(value, dict):
            raise UserError(f"'passage' must be an object, not {type(value).__name__}")
        _only(value, {"id", "title", "text"}, set(), "passage")
        title = value["title"]
        if not isinstance(title, str):
            raise UserError(f"'title' must be text, not {title!r}")
        return Evidence(Passage(_text(value, "id"), _text(value, "text"), title))
    raise UserError(f"unknown target part {kind!r}; known: token, passage, text")


def _part_dict(part: Part) -> dict[str, Any]:
    match part:
        case Token(token):
            return {"token": token}
        case Text(text):
            return {"text": text}
        case Evidence(passage):
            return {"passage": {"id": passage.id, "title": passage.title, "text": passage.text}}


def _only(record: dict[str, Any], needed: set[str], optional: set[str], what: str) -> None:
    if missing := sorted(needed - set(record)):
        raise UserError(f"{what} lacks {', '.join(missing)}")
    if unknown := sorted(str(key) for key in set(record) - needed - optional):
        raise UserError(f"{what} has unknown {', '.join(unknown)}")


def _text(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{key!r} must be text that is not empty, not {value!r:.80}")
    return value
