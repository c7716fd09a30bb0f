"""The records of one file in one run: streamed as they come, whole after a kill, sorted when all are there.

`NAME.log.jsonl` grows by one line an item, in the order in which items finish, with what each took. When every item is
there, `NAME.jsonl` is written: the records in the order of the items, without what depends on the clock, so that a run
that was killed and resumed ends with the same bytes as one that was not. Knows no system and no metric.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from retrieval.atomic import writing
from selfrag.errors import UserError
from selfrag.jsonl import json_line, read_jsonl, write_jsonl

NO_RECORD = "no record of a run"


@dataclass(frozen=True, slots=True)
class Spent:
    """What a record took; it differs from run to run.

    Attributes:
        seconds: wall time since the record before, so that the sum is the time of the run.
        cached_tokens: prompt tokens that were not computed anew.
    """

    seconds: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is remembered of a record; the record itself may hold a whole trace and stays on disk.

    Attributes:
        failed: whether it tells of an error.
        spent: what it took.
        start: first byte of its line in the log.
    """

    failed: bool
    spent: Spent
    start: int


class RecordFile:
    """Records of the items of one file.

    Args:
        folder: of the run; must exist.
        name: of the file.

    Raises:
        UserError: a line of the log is damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.final = folder / f"{name}.jsonl"
        self.log = folder / f"{name}.log.jsonl"
        self._kept: dict[str, _Kept] = {}
        if self.log.exists():
            self._load()
        elif self.final.exists():  # somebody threw the log away, which costs the times only
            for record in read_records(self.final):
                self._kept[record["id"]] = _Kept(bool(record.get("error")), Spent(0.0), 0)

    @property
    def done(self) -> frozenset[str]:
        """Ids of the items that are recorded."""
        return frozenset(self._kept)

    @property
    def finished(self) -> bool:
        """Whether the final file is there."""
        return self.final.exists()

    def append(self, record: Mapping[str, Any], spent: Spent) -> None:
        """Write one record, which has an `id`; it survives the death of the process from here on.

        Raises:
            UserError: the disk is full; what was written before is kept.
        """
        with writing(self.log), self.log.open("ab") as stream:
            start = stream.tell()
            stream.write(json_line(_line(record, spent)).encode())
        self._kept[record["id"]] = _Kept(bool(record.get("error")), spent, start)

    def reopen(self) -> None:
        """Take the failed records out, so that their items are run again; nothing happens where there are none."""
        if not any(kept.failed for kept in self._kept.values()):
            return
        with writing(self.log):
            write_jsonl(self.log, (line for line in self._lines() if not line["record"].get("error")))
            self.final.unlink(missing_ok=True)
        self._kept = {}
        self._load()

    def finish(self, order: Sequence[str]) -> dict[str, Any]:
        """Write the final file if it is not there, and count.

        Args:
            order: ids of all items, each recorded.

        Returns:
            Items, failed items, seconds, cached tokens.
        """
        kept = [self._kept[key] for key in order]
        if not self.finished:
            with writing(self.final), self.log.open("rb") as log:
                write_jsonl(self.final, (_at(log, one.start)["record"] for one in kept))
        return {
            "items": len(kept),
            "failed": sum(one.failed for one in kept),
            "seconds": round(sum(one.spent.seconds for one in kept), 3),
            "cached_tokens": sum(one.spent.cached_tokens for one in kept),
        }

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.log.exists():
            with self.log.open("rb") as log:
                yield from (json.loads(line) for line in log)
        else:
            yield from (_line(record, Spent(0.0)) for record in read_records(self.final))

    def _load(self) -> None:
        """Read the log, and cut off a line that was being written when the process died."""
        whole = 0
        with self.log.open("rb") as log:
            for number, text in enumerate(log, 1):
                if not text.endswith(b"\n"):
                    break
                try:
                    line = json.loads(text)
                    spent = Spent(float(line["seconds"]), int(line["cached_tokens"]))
                    record = line["record"]
                    self._kept[record["id"]] = _Kept(bool(record.get("error")), spent, whole)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                    fix = "delete this line to run its item again"
                    raise UserError(f"{self.log}:{number}: no record; {fix}") from error
                whole += len(text)
        if whole != self.log.stat().st_size:
            with writing(self.log), self.log.open("r+b") as log:
                log.truncate(whole)


def item_id(record: Mapping[str, Any]) -> str:
    """Id of the item that a record is of.

    Raises:
        UserError: it has none, so it is no record.
    """
    found = record.get("id")
    if not isinstance(found, str):
        raise UserError(NO_RECORD)
    return found


def read_records(path: Path, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The records of a finished file.

    Args:
        path: the file.
        keys: what is wanted of each record; whole traces then need no memory. All by default.

    Raises:
        UserError: the file is missing or damaged; names `file:line`.
    """

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        item_id(record)
        if not isinstance(record.get("scores"), dict):
            raise UserError(NO_RECORD)
        return record if keys is None else {key: record[key] for key in keys if key in record}

    return list(read_jsonl(path, parse))


def failures(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """How many items of a finished run failed, and why one of them did; None where none did.

    Args:
        folder: of the run.
        results: name of a file of it to what was counted, `failed` among it.

    Raises:
        UserError: as `read_records`.
    """
    total = sum(found["failed"] for found in results.values())
    if not total:
        return None
    name = next(name for name, found in results.items() if found["failed"])
    records = read_records(folder / f"{name}.jsonl", ("id", "error"))
    one = next(record for record in records if record.get("error"))
    return f"{total} failed, such as {one['id']} of {name}: {' '.join(str(one['error']).split())}"


def _at(log: BinaryIO, start: int) -> dict[str, Any]:
    log.seek(start)
    line: dict[str, Any] = json.loads(log.readline())
    return line


def _line(record: Mapping[str, Any], spent: Spent) -> dict[str, Any]:
    return {"record": record, "seconds": spent.seconds, "cached_tokens": spent.cached_tokens}
