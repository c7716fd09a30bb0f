"""`Digest`: a finished run without its texts, small enough to be committed: manifest and every item's scores.

What a digest holds is all that a comparison needs, so that tables with intervals can be computed from it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from retrieval.atomic import write_text
from selfrag.errors import UserError
from selfrag.evaluation.compare_runs import FileResult, SystemRun, read_run
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.runner_manifest import read_manifest
from selfrag.jsonl import json_line

PLAIN = tuple(field.name for field in fields(FileResult) if field.name != "scores")
LATER = ("form", "judges")
"""Fields that older digests do not have."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A finished run, digested.

    Attributes:
        manifest: of the run; data files by their names, without the folders of a machine.
        run: its scores.
    """

    manifest: Mapping[str, Any]
    run: SystemRun

    @property
    def items(self) -> str:
        """A short mark of the files and items: equal for runs that can be compared."""
        data = {name: [found.data, found.ids] for name, found in self.run.files.items()}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Of the file: the same for the same system on the same items, so that a new run replaces an old one."""
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.run.name)
        return f"{safe}-{self.items}.json"


def digest(folder: Path) -> Digest:
    """Digest a finished run.

    Raises:
        UserError: the folder holds no finished run, or damaged records.
    """
    manifest = read_manifest(folder)
    files = {
        name: {**entry, "path": Path(str(entry["path"])).name} if "path" in entry else entry
        for name, entry in manifest["files"].items()
    }
    return Digest(manifest | {"files": files}, read_run(folder))


def write_digest(found: Digest, folder: Path) -> Path:
    """Write `folder/NAME.json`, the scores by column.

    Raises:
        UserError: the place cannot be written.
    """
    files = {
        name: {key: getattr(result, key) for key in PLAIN}
        | {"scores": {metric: [_short(part) for part in parts] for metric, parts in result.scores.items()}}
        for name, result in found.run.files.items()
    }
    values = {"manifest": found.manifest, "name": found.run.name, "files": files}
    path = folder / found.name
    write_text(path, json_line(values))
    return path


def read_digest(path: Path) -> Digest:
    """Read what `write_digest` wrote.

    Raises:
        UserError: the file is no digest.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        files = {str(name): _file(given) for name, given in values["files"].items()}
        return Digest(values["manifest"], SystemRun(str(values["name"]), path, files))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no digest of a run: {type(error).__name__}: {error}") from error


def _file(given: Mapping[str, Any]) -> FileResult:
    values = {key: given[key] for key in PLAIN if key in given or key not in LATER}
    for name in ("metrics", "ids", "judged"):
        values[name] = tuple(map(str, values[name]))
    values["whole"] = {name: None if pair is None else (pair[0], pair[1]) for name, pair in values["whole"].items()}
    scores = {metric: tuple(_part(short) for short in parts) for metric, parts in given["scores"].items()}
    return FileResult(**values, scores=scores)


def _short(part: Part | None) -> Any:
    """One number for the usual part of a mean; whole numbers without a point."""
    if part is None:
        return None
    numbers = [int(number) if float(number).is_integer() else number for number in part]
    return numbers[0] if numbers[1] == 1 else numbers


def _part(short: Any) -> Part | None:
    if short is None:
        return None
    return (float(short[0]), float(short[1])) if isinstance(short, list) else (float(short), 1.0)
