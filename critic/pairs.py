"""Pairs of an instruction and its reference output, what reflection tokens are written into, and where they come from.

A source is a JSONL file, or a Hugging Face data set, in memory or streaming. Reading is strict: a bad row stops with
its place, before anything is spent where the source can be read twice; or, if asked for, it is counted and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias, cast

from typing_extensions import TypedDict

from critic.case_files import EvidenceRecord, passage_of
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_identified, read_jsonl
from selfrag.common.kinds import Filled
from selfrag.common.public_fields import UnusableError
from selfrag.common.public_rows import PublicRows, unbroken
from selfrag.common.untrusted import replace_surrogates
from selfrag.common.validation import validate


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


def parse_pair(record: dict[str, Any]) -> Pair:
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
    *,
    place: str = "",
    streaming: bool = True,
) -> PublicRows:
    """Rows of one split of a data set: `owner/name` on the hub, a folder of data files, or one of `save_to_disk`.

    `place` is how an error begins; `hf:NAME` by default. `streaming` fetches rows while they are read.
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
            datasets.load_dataset(
                name, configuration, split=split, streaming=streaming
            ),
        )
    except broken as error:
        raise UserError(f"{place or f'hf:{name}'}: {error}") from error


BadRows: TypeAlias = Literal["stop", "drop"]


@dataclass(frozen=True, slots=True)
class PairSource:
    """A JSONL file of pairs (`.gz` allowed), or rows that can be read again, such as a `Dataset` or a stream."""

    rows: Path | Iterable[Mapping[str, Any]]
    name: str  # what to call it
    # our key -> column of the data set, for keys that are named otherwise there. A set without `id` gets ids from
    # positions.
    columns: Mapping[str, str] = field(default_factory=dict)
    bad_rows: BadRows = "stop"  # `stop` at the first bad row, or `drop` and count them
    limit: int | None = None  # read this many rows only

    def total(self) -> int | None:
        """Return the number of rows, all checked; None for a stream, whose bad rows are met when they come."""
        if isinstance(self.rows, Path) or hasattr(self.rows, "__len__"):
            return sum(1 for _ in self)
        return None

    def __iter__(self) -> Iterator[Pair | Dropped]:
        checked = _checked(self.name, self.bad_rows)
        rows = (
            read_jsonl(self.rows, checked)
            if isinstance(self.rows, Path)
            else self._read(self.rows, checked)
        )
        return islice(rows, self.limit)

    def _read(
        self,
        dataset: Iterable[Mapping[str, Any]],
        checked: Callable[[dict[str, Any]], Pair | Dropped],
    ) -> Iterator[Pair | Dropped]:
        rows = unbroken(
            dataset, self.name, "finished shards are kept, run the same again"
        )
        for number, row in enumerate(rows, 1):
            record = {
                **row,
                **{key: row.get(column) for key, column in self.columns.items()},
            }
            try:
                yield checked({"id": f"{self.name}-{number}", **_without_nulls(record)})
            except UserError as error:
                raise UserError(f"{self.name} row {number}: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Return a row, or a part of one, without the nulls that Arrow fills gaps with."""
    if isinstance(value, Mapping):
        return {
            key: _without_nulls(part) for key, part in value.items() if part is not None
        }
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    return value


def _checked(
    name: str, bad_rows: BadRows
) -> Callable[[dict[str, Any]], Pair | Dropped]:
    """Return a parser of rows in their order; ids occur once."""
    seen: set[str] = set()
    row = 0

    def parse(record: dict[str, Any]) -> Pair | Dropped:
        nonlocal row
        row += 1
        try:
            pair = parse_pair(record)
            if pair.id in seen:
                raise UserError(f"id {pair.id!r} occurs twice")
        except UserError as error:
            if bad_rows == "stop":
                raise
            return Dropped(f"{name}:{row}", "bad row", replace_surrogates(str(error)))
        seen.add(pair.id)
        return pair

    return parse


def open_source(
    pairs: str,
    *,
    configuration: str | None = None,
    split: str = "train",
    streaming: bool = False,
    columns: Mapping[str, str] | None = None,
    bad_rows: BadRows = "stop",
    limit: int | None = None,
) -> PairSource:
    """Open a source: a JSONL file, a folder that `save_to_disk` wrote, or a data set that `load_dataset` finds."""
    path = Path(pairs)
    if path.is_file():
        if configuration is not None or split != "train" or streaming or columns:
            raise UserError(
                f"{pairs} is a file; a configuration, a split, streaming and columns are for data sets"
            )
        return PairSource(path, path.name, bad_rows=bad_rows, limit=limit)
    place = f"no pairs at {pairs!r} (split {split!r})"
    rows = open_dataset(pairs, configuration, split, place=place, streaming=streaming)
    name = path.name if configuration is None else f"{path.name}/{configuration}"
    return PairSource(rows, name, columns or {}, bad_rows, limit)
