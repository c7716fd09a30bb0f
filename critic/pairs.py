"""`Pair`: an instruction and its reference output, what reflection tokens are written into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from critic.cases import need, passage_of, text_of
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.jsonl import read_identified
from selfrag.training.public_rows import UnusableError


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
class Skipped:
    """A row of a known kind that is no pair, such as one without an output. Counted and named, never silent."""

    place: str
    reason: str


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
