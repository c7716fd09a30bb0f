"""`Pair`: an instruction and its reference output, what reflection tokens are written into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from critic.cases import need, passage_of, text_of
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.jsonl import read_identified


@dataclass(frozen=True, slots=True)
class Pair:
    """One input-output pair."""

    id: str  # unique in its file
    dataset: str  # where it came from
    instruction: str  # what the user asks, with its input where the task has one
    output: str  # the reference output
    kind: str = ""  # kind of task, such as `short_qa`, `long_form`, `instruction`; only reports go by it
    passages: tuple[Passage, ...] = ()  # passages known to support the output, best first; often none

    def as_dict(self) -> dict[str, Any]:
        """Plain values, in the schema that `read_pairs` reads."""
        record: dict[str, Any] = {
            "id": self.id,
            "dataset": self.dataset,
            "instruction": self.instruction,
            "output": self.output,
            "kind": self.kind,
        }
        if self.passages:
            record["gold_passages"] = [{"id": p.id, "title": p.title, "text": p.text} for p in self.passages]
        return record


FIELDS = "a pair has the texts id, instruction and output, and may have dataset, kind and gold_passages"
"""For messages."""


def read_pairs(path: str | Path) -> Iterator[Pair]:
    """Read a JSONL file of pairs (`.gz` allowed), strictly.

    Raises:
        UserError: the file cannot be read, a row is bad, or an id occurs twice; the message names `file:line`.
    """
    return read_identified(path, parse_pair)


def parse_pair(record: dict[str, Any]) -> Pair:
    """Check one decoded JSON object and make it a pair; keys that are not known are ignored.

    Raises:
        UserError: a key is missing or of the wrong type, or instruction or output is blank.
    """
    need(record, ("id", "instruction", "output"), FIELDS)
    key = text_of(record, "id")
    gold = record.get("gold_passages", [])
    if not isinstance(gold, list) or not all(isinstance(p, dict) for p in gold):
        raise UserError("'gold_passages' must be a list of objects, each with a text and perhaps a title and an id")
    passages = tuple(passage_of(p, f"{key}/p{n}") for n, p in enumerate(gold, 1))
    instruction, output = text_of(record, "instruction"), text_of(record, "output")
    for name, value in (("instruction", instruction), ("output", output)):
        if not value.strip():
            raise UserError(f"{name!r} is empty")
    return Pair(key, text_of(record, "dataset", ""), instruction, output, text_of(record, "kind", ""), passages)


@dataclass(frozen=True, slots=True)
class Raw:
    """One row before anybody looked into it."""

    place: str  # `file:line`, or what comes nearest to it
    key: str  # the row's name in its source where the source names rows by key, else its number from 0
    record: Mapping[str, Any]  # the row

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Put the place in front of what is wrong with this row."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.place}: {error}; fix this row, or choose the format it is in") from error


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row of a known kind that is no pair, such as one without an output. Counted and named, never silent."""

    place: str
    reason: str


class UnusableError(Exception):
    """Raised while one row is read: it is well formed, but no pair. `str(error)` is the reason."""


Outcome: TypeAlias = Pair | Skipped


def make_pair(
    key: str, dataset: str, kind: str, instruction: str, output: str, passages: tuple[Passage, ...] = ()
) -> Pair:
    """A pair with the white space around its texts removed.

    Raises:
        UnusableError: instruction or output is blank, or holds half a character, which no UTF-8 file can.
    """
    pair = Pair(key, dataset, instruction.strip(), output.strip(), kind, passages)
    for name, written in (("instruction", pair.instruction), ("output", pair.output)):
        if not written:
            raise UnusableError(f"no {name}")
    texts = (text for p in passages for text in (p.id, p.title, p.text))
    try:
        "".join((key, pair.instruction, pair.output, *texts)).encode()
    except UnicodeEncodeError:
        raise UnusableError("text with half a character (a lone surrogate)") from None
    return pair


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
