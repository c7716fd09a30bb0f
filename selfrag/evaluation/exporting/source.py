"""One file of a finished run as every export needs it: items, records and figures. Knows no other tool's format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.errors import UserError
from selfrag.evaluation.compare_bootstrap import Draws, bootstrap
from selfrag.evaluation.compare_runs import SystemRun, read_run
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import ratio
from selfrag.evaluation.runner_items import items_of
from selfrag.evaluation.runner_manifest import read_manifest
from selfrag.jsonl import read_jsonl


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric over the items of a file.

    Attributes:
        value: the figure, a sum over a sum.
        error: standard error by bootstrap over items; None with fewer than two items.
        low: lower end of the 95% interval; None likewise.
        high: upper end.
        counted: items that the metric says something about.
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    counted: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One item with its record.

    Attributes:
        number: in the file as it was run, from 0.
        item: what was asked.
        record: as the run wrote it.
    """

    number: int
    item: Item
    record: Mapping[str, Any]

    @property
    def target(self) -> list[str]:
        """What would be right: the label of a closed set, else every reference; empty if nothing would be."""
        if self.item.label is not None and self.item.options:
            return [self.item.label]
        return list(self.item.references)

    @property
    def figures(self) -> dict[str, float | None]:
        """Each metric of this item alone; None where it says nothing."""
        return {name: ratio([part]) for name, part in self.record["scores"].items()}


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a run.

    Attributes:
        run: the system, its scores and the folder.
        manifest: of the run.
        name: of the file.
        items: by id.
        figures: metric to figure, the headline first; None where no item counts.
    """

    run: SystemRun
    manifest: Mapping[str, Any]
    name: str
    items: Mapping[str, Item]
    figures: Mapping[str, Figure | None]

    @property
    def settings(self) -> Mapping[str, Any]:
        """How the file was read and scored."""
        found: Mapping[str, Any] = self.manifest["files"][self.name]["settings"]
        return found

    @property
    def started(self) -> datetime:
        """When the run was."""
        return datetime.fromisoformat(self.manifest["about"]["time"]).astimezone(UTC)

    @property
    def key(self) -> str:
        """Tells this file of this run from every other; the same at every export."""
        text = json.dumps([self.manifest["identity"], self.name, self.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def samples(self) -> Iterator[Sample]:
        """Items with their records, one at a time, in the order of the run.

        Raises:
            UserError: a record is of no item.
        """

        def parse(record: dict[str, Any]) -> Mapping[str, Any]:
            if record.get("id") not in self.items:
                raise UserError(f"a record of {record.get('id')!r}, which is no item of the data")
            return record

        for number, record in enumerate(read_jsonl(self.run.folder / f"{self.name}.jsonl", parse)):
            yield Sample(number, self.items[record["id"]], record)


def read_source(folder: Path, name: str, data: Path | None = None, *, seed: int = 0) -> Source:
    """Open one file of a run for export.

    Args:
        folder: of the run.
        name: of the file.
        data: folder of the data file, if it is no longer where the run read it.
        seed: of the bootstrap.

    Raises:
        UserError: no such run or file, it is not finished, its data has gone or changed.
    """
    run = read_run(folder, [name])
    found = run.files[name]
    draws = bootstrap([found.scores[metric] for metric in found.metrics], name=name, seed=seed)
    figures = {metric: _figure(one) for metric, one in zip(found.metrics, draws, strict=True)}
    return Source(run, read_manifest(folder), name, items_of(folder, name, data), figures)


def _figure(draws: Draws | None) -> Figure | None:
    if draws is None:
        return None
    found = draws.estimate
    known = draws.samples[np.isfinite(draws.samples)]
    if found.low != found.low or len(known) < 2:  # no interval: it is NaN
        return Figure(found.value, None, None, None, found.n)
    return Figure(found.value, float(np.std(known)), found.low, found.high, found.n)
