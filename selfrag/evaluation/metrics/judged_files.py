"""What a judge said about a file of a run, kept beside its records: `FILE.judged.JUDGE.json`. Asks no judge.

Figures join those of the run under their own name with the judge's, so that two judges of one run stay apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json
from selfrag.errors import UserError
from selfrag.evaluation.metrics.metric import Part
from selfrag.evaluation.records import PACKAGES
from selfrag.provenance import commit, sha256, versions

_MIDDLE = ".judged."


@dataclass(frozen=True, slots=True)
class Judged:
    """Figures of one judge on one file of a run.

    Attributes:
        judge: what reports call it.
        identity: everything that decides its verdicts.
        parts: metric to id of the item to its part; None where the metric says nothing about the item.
        undecided: metric to the number of items that it would say something about, had there been every verdict.
        whole: figures of all items together, such as MAUVE, with what is to be known of them; None if undefined.
    """

    judge: str
    identity: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Part | None]] = field(default_factory=dict)
    undecided: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """A short mark of who judged; what came out (`output`) is no part of it."""
        who = {key: value for key, value in self.identity.items() if key != "output"}
        return hashlib.sha256(json.dumps(who, sort_keys=True).encode()).hexdigest()[:12]

    def column(self, metric: str) -> str:
        """Name of a figure in a table."""
        return f"{metric} ({self.judge})"


def write_judged(folder: Path, file: str, judged: Judged, about: Mapping[str, Any]) -> Path:
    """Write, or replace, what a judge said.

    Args:
        folder: of the run.
        file: name of the file in the run, which must be finished.
        judged: the figures.
        about: time, commit and versions, for the reader.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", judged.judge).strip("-.")[:80] or "judge"
    path = folder / f"{file}{_MIDDLE}{slug}.json"
    values = {
        "judge": judged.judge,
        "identity": dict(judged.identity),
        "records": sha256(folder / f"{file}.jsonl"),
        "undecided": dict(judged.undecided),
        "whole": {name: None if one is None else dict(one) for name, one in judged.whole.items()},
        "about": dict(about),
        "parts": {name: dict(own) for name, own in judged.parts.items()},
    }
    write_json(path, values)
    return path


def read_judged(folder: Path, file: str) -> list[Judged]:
    """What judges said about a file, in the order of their names; nothing if none was asked.

    Raises:
        UserError: a file is damaged, or of other records than those that are there.
    """
    found = []
    records = folder / f"{file}.jsonl"
    for path in sorted(folder.glob(f"{_escaped(file)}{_MIDDLE}*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            parts = {name: {key: _part(one) for key, one in own.items()} for name, own in values["parts"].items()}
            judged = Judged(
                str(values["judge"]), values["identity"], parts, dict(values["undecided"]), dict(values["whole"])
            )
            of = values["records"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read ({error!r:.80}); judge the run again") from error
        if of != sha256(records):
            raise UserError(f"{path} is about other records than {records}; judge the run again, or delete this file")
        found.append(judged)
    return found


def about() -> dict[str, Any]:
    """Time, commit and versions, for the reader of what was written."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "commit": commit(), "versions": versions((*PACKAGES, "mauve-text"))}


def _part(value: Any) -> Part | None:
    if value is None:
        return None
    top, bottom = value
    return float(top), float(bottom)


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
