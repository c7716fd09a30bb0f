"""Records of one kind made in batches, appended as they come, resumed where they stopped. Knows no record's content."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.evaluation.runner_manifest import RunDirectory
from selfrag.evaluation.runner_records import RecordFile, Spent

BATCH = 64
"""Records that are made together: a kill loses at most the work on these."""

Made = tuple[Mapping[str, Any], int]
"""A record with its `id`, and how many prompt tokens were not computed anew."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Where records go, and how.

    Attributes:
        directory: of the run.
        retry_failed: make records again that hold an error.
        progress: called with the number of records that are done.
        batch: see `BATCH`.
    """

    directory: RunDirectory
    retry_failed: bool = False
    progress: Callable[[int], object] = lambda done: None
    batch: int = BATCH

    def fill(
        self,
        name: str,
        path: Path,
        entry: Mapping[str, Any],
        ids: Sequence[str],
        make: Callable[[list[str]], list[Made]],
    ) -> dict[str, Any]:
        """Make the records that are not there yet.

        Args:
            name: of the file of records.
            path: of the data.
            entry: everything that decides the records, see `RunDirectory.admit_entry`.
            ids: of all records, in the order of the finished file.
            make: from some ids to their records, in order.

        Returns:
            Items, failed, seconds and cached tokens.

        Raises:
            UserError: records of other settings are there, the disk is full, or `make` raised it; what was recorded is
                kept.
        """
        self.directory.admit_entry(name, path, entry)
        with closing(RecordFile(self.directory.folder, name)) as records:
            if self.retry_failed:
                records.reopen()
            missing = [one for one in ids if one not in records.done]
            self.progress(len(ids) - len(missing))
            for start in range(0, len(missing), self.batch):
                some, before = missing[start : start + self.batch], time.perf_counter()
                made = make(some)
                seconds = (time.perf_counter() - before) / len(some)
                for record, cached in made:
                    records.append(record, Spent(seconds, cached))
                self.progress(len(some))
            found = records.finish(ids)
        self.directory.result(name, found)
        return found
