"""`Pair`: an instruction and its reference output, what reflection tokens are written into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from critic.cases import passage_of, text_of
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.jsonl import read_identified


@dataclass(frozen=True, slots=True)
class Pair:
    """One input-output pair.

    Attributes:
        id: unique in its file.
        dataset: where it came from.
        instruction: what the user asks, with its input where the task has one.
        output: the reference output.
        kind: kind of task, such as `short_qa`, `long_form`, `instruction`; only reports go by it.
        passages: passages known to support the output, best first; often none.
    """

    id: str
    dataset: str
    instruction: str
    output: str
    kind: str = ""
    passages: tuple[Passage, ...] = ()

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
    key = text_of(record, "id")
    gold = record.get("gold_passages", [])
    if not isinstance(gold, list) or not all(isinstance(p, dict) for p in gold):
        raise UserError("'gold_passages' must be a list of objects")
    passages = tuple(passage_of(p, f"{key}/p{n}") for n, p in enumerate(gold, 1))
    instruction, output = text_of(record, "instruction"), text_of(record, "output")
    for name, value in (("instruction", instruction), ("output", output)):
        if not value.strip():
            raise UserError(f"{name!r} is empty")
    return Pair(key, text_of(record, "dataset", ""), instruction, output, text_of(record, "kind", ""), passages)
