"""The page about training rows: reads counts and a seeded sample, and renders them with `page.html.j2`.

The page is one file that opens from disk, runs no script and asks no address for anything.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from critic.mixture import SeededSample
from selfrag.common.jsonl import JsonObject
from selfrag.interface import (
    GROUPS,
    ISREL,
    ISSUP,
    ISUSE,
    RETRIEVE,
    LabelSet,
    UserError,
    count_of,
    cut,
    read_jsonl,
    sha256,
)
from selfrag.render.colours import COLOURS, NAMES, slug
from selfrag.render.documents import document, picked_out, templates
from selfrag.render.documents import style_sheet as style
from selfrag.training.rows import (
    TargetEvidence,
    TargetToken,
    TrainingRow,
    read_rows,
)


@dataclass(slots=True)
class RowTally:
    """Counts over the rows of one source, or of all."""

    rows: int = 0  # how many
    retrieving: int = 0  # rows in which `[Retrieval]` occurs at least once (Table 3)
    segments: int = 0  # as many as there are Retrieve tokens
    passages: int = 0
    # occurrences of each reflection token
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, row: TrainingRow) -> None:
        """Count one row."""
        tokens = [part.token for part in row.target if isinstance(part, TargetToken)]
        self.rows += 1
        self.retrieving += RETRIEVE.tokens[0] in tokens
        self.segments += sum(token in RETRIEVE.tokens for token in tokens)
        self.passages += sum(isinstance(part, TargetEvidence) for part in row.target)
        self.tokens.update(tokens)

    def labels(self, group: LabelSet) -> list[int]:
        """Occurrences of the labels of a group, in their order."""
        return [self.tokens[token] for token in group.tokens]


def together(tallies: Iterable[RowTally]) -> RowTally:
    """Return the sum of tallies."""
    total = RowTally()
    for tally in tallies:
        for name in RowTally.__slots__:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    return total


def largest(sources: Mapping[str, RowTally], most: int) -> list[tuple[str, RowTally]]:
    """Return sources by falling size; where there are more than `most`, the last one stands for the rest."""
    ordered = sorted(sources.items(), key=lambda item: (-item[1].rows, item[0]))
    if len(ordered) <= most:
        return ordered
    small = [tally for _, tally in ordered[most - 1 :]]
    remainder = f"{count_of(len(small), 'more sources')}", together(small)
    return [*ordered[: most - 1], remainder]


MOST_SOURCES = 20
"""Sources in a table; the smaller ones share the last line."""
MOST_PARTS = 200
"""Parts of a target that are shown."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What there is to show."""

    files: tuple[tuple[str, str], ...]  # name and SHA-256 of each file of rows
    seed: int  # of the sample
    sources: dict[str, RowTally]  # of all rows, in the order in which they appear
    # rows of every source as evenly as there are enough, by source and then in the order of the files
    sample: tuple[TrainingRow, ...]
    # record of each sampled row that has one, by id
    provenance: dict[str, JsonObject] = field(default_factory=dict)

    @property
    def total(self) -> RowTally:
        """Counts over all sources."""
        return together(self.sources.values())


def inspect_rows(
    files: Sequence[str | Path],
    *,
    count: int = 40,
    seed: int = 0,
    provenance: Sequence[str | Path] = (),
) -> Inspection:
    """Read the rows of files once, and keep `count` of them with their records of `provenance` files."""
    from tqdm import tqdm

    if count < 0:
        raise UserError(f"count={count}; 0 rows or more can be shown")
    sources: dict[str, RowTally] = {}
    seen: set[str] = set()
    samples: dict[str, SeededSample[TrainingRow]] = {}
    rows = chain.from_iterable(read_rows(file) for file in files)
    for row in tqdm(rows, unit=" rows", delay=1, disable=None):
        if len(files) > 1:
            if row.id in seen:
                raise UserError(f"id {row.id!r:.80} occurs in two files")
            seen.add(row.id)
        sources.setdefault(row.source, RowTally()).add(row)
        samples.setdefault(row.source, SeededSample(count, seed)).add(row.id, row)
    if not sources:
        raise UserError(
            f"no rows in {', '.join(str(file) for file in files) or 'no file'}"
        )
    chosen = tuple(
        _shared_out([sample.items() for sample in samples.values()], count, seed)
    )
    shown = {row.id for row in chosen}
    records: dict[str, JsonObject] = {}
    for record in chain.from_iterable(
        read_jsonl(file, _identified) for file in provenance
    ):
        if record["id"] in shown:
            records[record["id"]] = record
    digests = tuple((Path(file).name, sha256(Path(file))) for file in files)
    return Inspection(digests, seed, sources, chosen, records)


def _shared_out(
    samples: Sequence[Sequence[TrainingRow]], count: int, seed: int
) -> Iterator[TrainingRow]:
    """Yield at most `count` rows, a round at a time over the samples; of each those that its draw prefers."""
    sizes = [0] * len(samples)
    left = count
    for place in range(max(map(len, samples), default=0)):
        for number, sample in enumerate(samples):
            if place < len(sample) and left:
                sizes[number] += 1
                left -= 1
    for number, sample in enumerate(samples):
        smaller: SeededSample[TrainingRow] = SeededSample(sizes[number], seed)
        for row in sample:
            smaller.add(row.id, row)
        yield from smaller.items()


def _identified(record: JsonObject) -> JsonObject:
    if not isinstance(record.get("id"), str):
        raise UserError(
            f"a provenance record needs the 'id' of its row, found {json.dumps(list(record))[:80]}"
        )
    return record


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def render(inspection: Inspection) -> str:
    """Return the page as text. The same inspection gives the same page; whatever the rows hold is text on it."""
    environment = templates("critic", "inspect")
    environment.filters |= {
        "listed": _listed,
        "figure": _figure,
        "share": _share,
        "judgment": _judgment,
        "pretty": partial(json.dumps, ensure_ascii=False, indent=1),
    }
    total = inspection.total
    used = {
        part.token
        for row in inspection.sample
        for part in row.target
        if isinstance(part, TargetToken)
    }
    tokens = [token for token in COLOURS if token in used]
    sources = [*largest(inspection.sources, MOST_SOURCES), ("all", total)]
    filters = [
        (token, sum(TargetToken(token) in row.target for row in inspection.sample))
        for token in tokens
    ]
    body = environment.get_template("page.html.j2").render(
        inspection=inspection,
        shown=f"{len(inspection.sample):,} of {count_of(total.rows, 'rows', form=',')}, seed {inspection.seed}",
        sources=[(name, tally, _figures(tally)) for name, tally in sources],
        groups=[(NAMES[group.role], group) for group in GROUPS],
        filters=filters,
        most_parts=MOST_PARTS,
    )
    names = ", ".join(name for name, _ in inspection.files[:3])
    if len(inspection.files) > 3:
        names += " ..."
    rules = [
        picked_out(f"show-{slug(token)}", f"article:not(.has-{slug(token)})")
        for token in tokens
    ]
    return document(f"Training rows: {cut(names, 120)}", style(*rules), body)


def _figures(tally: RowTally) -> Iterator[str]:
    """Yield the columns of Table 3."""
    yield f"{tally.rows:,}"
    yield f"{tally.retrieving / tally.rows:.1%}"
    for count in (tally.segments, tally.passages):
        yield f"{count / tally.rows:.2f}"
    for group in (ISREL, ISSUP):
        counts = tally.labels(group)
        yield f"{counts[0] / sum(counts):.1%}" if sum(counts) else "-"
    grades = tally.labels(ISUSE)
    yield (
        f"{sum(n * count for n, count in enumerate(grades, 1)) / sum(grades):.2f}"
        if sum(grades)
        else "-"
    )


def _figure(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def _share(judgment: Mapping[str, Any]) -> Any:
    """Return the probability of a judgment's label in a provenance record, where it is as expected."""
    label, shares = judgment.get("label"), judgment.get("p")
    if isinstance(shares, Mapping) and isinstance(label, str):
        return shares.get(label)
    return None


def _judgment(judgment: Any) -> str:
    if not isinstance(judgment, Mapping):
        return ""
    shares = judgment.get("p")
    if not isinstance(shares, Mapping) or not shares:
        return str(judgment.get("label"))
    shown = ", ".join(f"{key} {_figure(share)}" for key, share in shares.items())
    return f"{judgment.get('label')} ({shown})"
