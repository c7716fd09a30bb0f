"""Recorded decodes read back from a finished run: per item its trace, its output, or why it failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.decoding.trace import Trace, trace_of
from selfrag.errors import UserError
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.records import item_id
from selfrag.jsonl import read_jsonl


@dataclass(frozen=True, slots=True)
class Recorded:
    """One item's record.

    Attributes:
        id: of the item.
        error: why there is no answer; None if there is one.
        output: the answer; None if there is none.
        trace: everything that was considered; None without an answer, or if the run kept no traces.
    """

    id: str
    error: str | None
    output: Output | None
    trace: Trace | None

    @property
    def usage(self) -> Mapping[str, int]:
        """What the decode took; nothing is known of failed ones."""
        return self.output.usage if self.output is not None else {}


def read_recorded(path: Path, *, traces: bool = True) -> Iterator[Recorded]:
    """The records of a finished file, one at a time.

    Args:
        path: `NAME.jsonl` of a run directory.
        traces: read traces too, and refuse records without.

    Raises:
        UserError: the file is missing or damaged; names `file:line`.
    """

    def parse(record: dict[str, Any]) -> Recorded:
        key = item_id(record)
        if record.get("error") is not None:
            return Recorded(key, str(record["error"]), None, None)
        if traces and "trace" not in record:
            raise UserError("a record without its trace; run it with traces")
        return Recorded(key, None, Output.from_record(record), trace_of(record["trace"]) if traces else None)

    return read_jsonl(path, parse)
