"""Pairs of an instruction and its reference output, what reflection tokens are written into, and where they come from.

Reading is strict: a bad row stops with its place, before anything is spent. Data sets become pairs by `critic.formats`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NotRequired, TypeAlias, cast

from typing_extensions import TypedDict

from critic.case_files import EvidenceRecord, passage_of
from selfrag.common.jsonl import JsonObject, read_identified
from selfrag.common.kinds import Filled
from selfrag.common.public_fields import UnusableError
from selfrag.common.public_rows import PublicRows
from selfrag.interface import Passage, UserError, validate


@dataclass(frozen=True, slots=True)
class Pair:
    """One input-output pair."""

    id: str  # unique in its file
    dataset: str  # where it came from
    instruction: str  # what the user asks, with its input where the task has one
    output: str  # the reference output
    kind: str = ""  # kind of task, such as `short_qa`, `long_form`, `instruction`; only reports go by it
    # passages known to support the output, best first; often none
    passages: tuple[Passage, ...] = ()

    def as_dict(self) -> JsonObject:
        """Plain values, in the schema that `read_pairs` reads."""
        record: JsonObject = {
            "id": self.id,
            "dataset": self.dataset,
            "instruction": self.instruction,
            "output": self.output,
            "kind": self.kind,
        }
        if self.passages:
            record["gold_passages"] = [
                {"id": p.id, "title": p.title, "text": p.text} for p in self.passages
            ]
        return record


class PairRecord(TypedDict):
    """A pair in a row of a file."""

    id: str
    dataset: NotRequired[str]
    instruction: Filled
    output: Filled
    kind: NotRequired[str]
    gold_passages: NotRequired[list[EvidenceRecord]]


def read_pairs(path: str | Path) -> Iterator[Pair]:
    """Read a JSONL file of pairs (`.gz` allowed), strictly: a `UserError` names `file:line` of a bad row."""
    return read_identified(path, parse_pair)


def parse_pair(record: JsonObject) -> Pair:
    """Check one decoded JSON object and make it a pair."""
    validate(PairRecord, record, others="ignore", mended=True)
    # as it came: a pair with half of a character is left out later, and counted
    row = cast(PairRecord, record)
    key = row["id"]
    passages = tuple(
        passage_of(gold, f"{key}/p{n}")
        for n, gold in enumerate(row.get("gold_passages", []), 1)
    )
    return Pair(
        key,
        row.get("dataset", ""),
        row["instruction"],
        row["output"],
        row.get("kind", ""),
        passages,
    )


@dataclass(frozen=True, slots=True)
class Dropped:
    """A pair or a row that gives nothing: counted and named, never silent."""

    id: str  # of the pair, or the place of a row that is none
    reason: str  # one of few, so that it can be counted
    detail: str = ""  # one line


PairOutcome: TypeAlias = Pair | Dropped


def make_pair(
    key: str,
    dataset: str,
    kind: str,
    instruction: str,
    output: str,
    passages: tuple[Passage, ...] = (),
) -> Pair:
    """Make a pair of stripped texts; raise UnusableError for blank ones and halves of characters."""
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


def open_dataset(
    name: str,
    configuration: str | None = None,
    split: str = "train",
) -> PublicRows:
    """Return rows of one split of a data set: `owner/name` on the hub, a folder of data files, or of `save_to_disk`.

    Rows of the hub are fetched while they are read.
    """
    import datasets

    # Runtime: it has code
    broken = (
        LookupError,
        OSError,
        ValueError,
        RuntimeError,
        datasets.exceptions.DatasetsError,
    )
    try:
        if any(
            (Path(name) / mark).exists() for mark in ("state.json", "dataset_dict.json")
        ):
            saved = datasets.load_from_disk(name)
            return cast(PublicRows, saved[split] if isinstance(saved, dict) else saved)
        return cast(
            PublicRows,
            datasets.load_dataset(name, configuration, split=split, streaming=True),
        )
    except broken as error:
        raise UserError(f"hf:{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class PairSource:
    """A JSONL file of pairs (`.gz` allowed), which can be read again."""

    path: Path
    limit: int | None = None  # read this many rows only

    def __iter__(self) -> Iterator[Pair]:
        return islice(read_pairs(self.path), self.limit)
