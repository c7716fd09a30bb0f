"""The records of one file in one run: streamed as they come, whole after a kill, sorted when all are there.

`NAME.log.jsonl` grows by one line an item, in the order in which items finish, with what each took. When every item is
there, `NAME.jsonl` is written: the records in the order of the items, without what depends on the clock, so that a run
that was killed and resumed ends with the same bytes as one that was not. Knows no system and no metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import writing
from selfrag.errors import UserError
from selfrag.jsonl import read_jsonl, write_jsonl
from selfrag.runlog import RunLog

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


class RecordFile:
    """Records of the items of one file; a record may hold a whole trace and stays on disk.

    Args:
        folder: of the run; must exist.
        name: of the file.

    Raises:
        UserError: a line of the log is damaged.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.final = folder / f"{name}.jsonl"
        self._kept: dict[str, tuple[int, bool, Spent]] = {}  # number in the log, whether it failed
        self._log = RunLog(
            folder / f"{name}.log.jsonl", None, {}, self._take, remedy="delete this line to run its item again"
        )
        if not len(self._log) and self.final.exists():  # somebody threw the log away, which costs the times only
            for record in read_records(self.final):
                self._keep(record, Spent(0.0))

    @property
    def done(self) -> frozenset[str]:
        """Ids of the items that are recorded."""
        return frozenset(self._kept)

    def append(self, record: Mapping[str, Any], spent: Spent) -> None:
        """Write one record, which has an `id`; it survives the death of the process from here on.

        Raises:
            UserError: the disk is full; what was written before is kept.
        """
        self._log.append(_line(record, spent))
        self._keep(record, spent)

    def reopen(self) -> None:
        """Take the failed records out, so that their items are run again; nothing happens where there are none."""
        if not any(failed for _, failed, _ in self._kept.values()):
            return
        if not len(self._log):
            for record in read_records(self.final):
                self._log.append(_line(record, Spent(0.0)))
        self._kept = {}
        self._log.keep(lambda line: not line["record"].get("error"))
        self.final.unlink(missing_ok=True)

    def close(self) -> None:
        """Free the log for another process."""
        self._log.close()

    def finish(self, order: Sequence[str]) -> dict[str, Any]:
        """Write the final file if it is not there, and count.

        Args:
            order: ids of all items, each recorded.

        Returns:
            Items, failed items, seconds, cached tokens.
        """
        self.close()
        kept = [self._kept[key] for key in order]
        if not self.final.exists():
            with writing(self.final):
                write_jsonl(self.final, (self._log.record(number)["record"] for number, _, _ in kept))
        return {
            "items": len(kept),
            "failed": sum(failed for _, failed, _ in kept),
            "seconds": round(sum(spent.seconds for _, _, spent in kept), 3),
            "cached_tokens": sum(spent.cached_tokens for _, _, spent in kept),
        }

    def _take(self, line: Mapping[str, Any]) -> None:
        self._keep(line["record"], Spent(float(line["seconds"]), int(line["cached_tokens"])))

    def _keep(self, record: Mapping[str, Any], spent: Spent) -> None:
        self._kept[record["id"]] = (len(self._kept), bool(record.get("error")), spent)


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


def _line(record: Mapping[str, Any], spent: Spent) -> dict[str, Any]:
    return {"record": record, "seconds": spent.seconds, "cached_tokens": spent.cached_tokens}
