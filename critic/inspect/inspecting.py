"""Reading what a page shows: statistics of all rows, a seeded sample of them, and the provenance of the sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from critic.inspect.statistics import Statistics
from critic.sources.mixture import Sample
from retrieval.errors import UserError
from selfrag.evaluation.provenance import sha256
from selfrag.jsonl import read_jsonl
from selfrag.training.rows import Row, read_rows


@dataclass(frozen=True, slots=True)
class Inspection:
    """What there is to show.

    Attributes:
        files: name and SHA-256 of each file of rows.
        seed: of the sample.
        statistics: of all rows.
        sample: rows of every source as evenly as there are enough, by source and then in the order of the files.
        provenance: record of each sampled row that has one, by id.
        rules: how often each rule chose a passage, over all provenance records.
        recorded: number of provenance records; 0 without.
    """

    files: tuple[tuple[str, str], ...]
    seed: int
    statistics: Statistics
    sample: tuple[Row, ...]
    provenance: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: Counter[str] = field(default_factory=Counter)
    recorded: int = 0


def inspect_rows(
    files: Sequence[str | Path],
    *,
    count: int = 40,
    seed: int = 0,
    provenance: Sequence[str | Path] = (),
    progress: Callable[[Iterator[Row]], Iterator[Row]] = iter,
) -> Inspection:
    """Read all rows once and keep `count` of them.

    Args:
        files: JSON lines of training rows (`.gz` allowed), such as the shards of one data set.
        count: rows to show, at least 0.
        seed: of the sample; the same seed and rows give the same sample.
        provenance: JSON lines with the `id` of a row; other keys are shown as far as they are known.
        progress: wraps the stream of rows, to show how far it is.

    Raises:
        UserError: a file cannot be read, a row is bad, an id occurs twice, or there is no row; names `file:line`.
    """
    if count < 0:
        raise UserError(f"count={count}; 0 rows or more can be shown")
    statistics, seen = Statistics(), set[str]()
    samples: dict[str, Sample[Row]] = {}
    for row in progress(chain.from_iterable(read_rows(file) for file in files)):
        if len(files) > 1:
            if row.id in seen:
                raise UserError(f"id {row.id!r:.80} occurs in two files")
            seen.add(row.id)
        statistics.add(row)
        samples.setdefault(row.source, Sample(count, seed)).add(row.id, row)
    if not statistics.sources:
        raise UserError(f"no rows in {', '.join(str(file) for file in files) or 'no file'}")
    chosen = _shared_out([sample.items() for sample in samples.values()], count, seed)
    records, rules, recorded = _provenance(provenance, {row.id for row in chosen})
    named = tuple((Path(file).name, sha256(Path(file))) for file in files)
    return Inspection(named, seed, statistics, tuple(chosen), records, rules, recorded)


def _shared_out(samples: Sequence[Sequence[Row]], count: int, seed: int) -> list[Row]:
    """At most `count` rows, a round at a time over the samples; within each the ones that its draw prefers."""
    sizes = [0] * len(samples)
    left = count
    while left and any(size < len(sample) for size, sample in zip(sizes, samples, strict=True)):
        for number, sample in enumerate(samples):
            if left and sizes[number] < len(sample):
                sizes[number] += 1
                left -= 1
    rows: list[Row] = []
    for size, sample in zip(sizes, samples, strict=True):
        smaller: Sample[Row] = Sample(size, seed)
        for row in sample:
            smaller.add(row.id, row)
        rows += smaller.items()
    return rows


def _provenance(files: Sequence[str | Path], wanted: set[str]) -> tuple[dict[str, dict[str, Any]], Counter[str], int]:
    records: dict[str, dict[str, Any]] = {}
    rules: Counter[str] = Counter()
    count = 0
    for file in files:
        for record in read_jsonl(file, _identified):
            count += 1
            segments = record.get("segments")
            for segment in segments if isinstance(segments, list) else []:
                if isinstance(segment, dict) and isinstance(segment.get("rule"), str):
                    rules[segment["rule"].partition(", ")[0][:120]] += 1
            if record["id"] in wanted:
                records[record["id"]] = record
    return records, rules, count


def _identified(record: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(record.get("id"), str):
        raise UserError(f"a provenance record needs the 'id' of its row, found {json.dumps(list(record))[:80]}")
    return record
