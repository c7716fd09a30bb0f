"""A mixture of sources written as one file of pairs, with counts of what was taken and of what was not, and why."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from critic.pairs import Pair
from critic.sources.formats import Format
from critic.sources.loading import Reading, load
from critic.sources.raw import Outcome, Skipped
from critic.sources.reading import Source
from critic.sources.sampling import draw
from retrieval.atomic import write_json, writing
from retrieval.errors import UserError
from selfrag.jsonl import write_jsonl
from selfrag.provenance import commit, sha256, versions

_SHOWN = 5  # places a reason


@dataclass(frozen=True, slots=True)
class Part:
    """One source of a mixture.

    Attributes:
        form: what its rows look like.
        source: a file, or rows.
        count: pairs to draw; None takes all.
    """

    form: Format
    source: Source
    count: int | None = None


@dataclass(slots=True)
class Tally:
    """What became of the rows of one source; `taken` of `pairs` are in the mixture."""

    source: str
    pairs: int = 0
    taken: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, row: Skipped) -> None:
        """Count a row that is no pair, and remember where the first few stand."""
        reason = row.reason.partition(" (")[0]
        self.skipped[reason] += 1
        if self.skipped[reason] <= _SHOWN:
            self.places.setdefault(reason, []).append(row.place)


Progress: TypeAlias = Callable[[str, Iterator[Outcome]], Iterator[Outcome]]
"""Wraps the rows of the named format while they are read, to show how far it is."""


def pairs(
    part: Part, tally: Tally, reading: Reading | None = None, seed: int = 0, progress: Progress = lambda _, rows: rows
) -> Iterator[Pair]:
    """The pairs drawn from one part; `tally` is complete when the last is taken.

    Raises:
        UserError: as `load`, or `count` is negative.
    """
    if part.count is not None and part.count < 0:
        raise UserError(f"{part.form.name}: {part.count} pairs cannot be drawn; 0 or more")

    def usable() -> Iterator[Pair]:
        for outcome in progress(part.form.name, load(part.source, part.form, reading)):
            if isinstance(outcome, Skipped):
                tally.skip(outcome)
            else:
                tally.pairs += 1
                yield outcome

    for pair in usable() if part.count is None else draw(usable(), part.count, seed):
        tally.taken += 1
        yield pair


def write_mixture(
    path: str | Path,
    parts: Sequence[Part],
    *,
    seed: int = 0,
    reading: Reading | None = None,
    progress: Progress = lambda _, rows: rows,
) -> list[Tally]:
    """Write all parts as one file of pairs, and `<path>.manifest.json` beside it.

    The file appears under its name only when it is complete, so an interrupted run is simply started again.

    Args:
        path: where; JSON lines that `critic.pairs.read_pairs` reads.
        parts: in the order of the file.
        seed: of the draws.
        reading: filters, the same for all parts.
        progress: see `Progress`.

    Returns:
        A tally for each part.

    Raises:
        UserError: a source cannot be read or has a bad row, two parts give the same id, or the disk is full.
    """
    path = Path(path)
    tallies = [Tally(_name(part.source)) for part in parts]
    seen: dict[str, str] = {}

    def stream() -> Iterator[Pair]:
        for part, tally in zip(parts, tallies, strict=True):
            for pair in pairs(part, tally, reading, seed, progress):
                if pair.id in seen:
                    raise UserError(f"id {pair.id!r} comes from {seen[pair.id]} and from {tally.source}; leave one out")
                seen[pair.id] = tally.source
                yield pair

    with writing(path):
        write_jsonl(path, (pair.as_dict() for pair in stream()))
    write_json(path.with_name(f"{path.name}.manifest.json"), _manifest(path, parts, tallies, seed, reading))
    return tallies


def _manifest(
    path: Path, parts: Sequence[Part], tallies: Sequence[Tally], seed: int, reading: Reading | None
) -> dict[str, Any]:
    return {
        "what": "pairs",
        "pairs": sum(tally.taken for tally in tallies),
        "sha256": sha256(path),
        "seed": seed,
        "reading": dataclasses.asdict(reading or Reading()),
        "parts": [
            {
                "format": part.form.name,
                "source": tally.source,
                "sha256": sha256(Path(part.source)) if isinstance(part.source, str | Path) else None,
                "wanted": part.count,
                "pairs": tally.pairs,
                "taken": tally.taken,
                "skipped": dict(tally.skipped.most_common()),
                "first_skipped": tally.places,
            }
            for part, tally in zip(parts, tallies, strict=True)
        ],
        "commit": commit(),
        "versions": versions(("selfrag", "datasets", "pyarrow", "py3langid")),
    }


def _name(source: Source) -> str:
    if isinstance(source, str | Path):
        return Path(source).name
    info = getattr(source, "info", None)
    return str(getattr(info, "dataset_name", None) or type(source).__name__)
