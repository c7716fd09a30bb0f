"""The page about training rows: reads statistics and a seeded sample, and renders them with `page.html.j2`.

The page is one file that opens from disk, runs no script and asks no address for anything.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    TargetPart,
    TargetText,
    TargetToken,
    TrainingRow,
    read_rows,
)

WORDS = (0, 1, 6, 11, 21, 51, 101, 201, 501)
"""Lower edges of the classes of lengths, in words of written text."""

_EXAMPLES = 5


@dataclass(slots=True)
class RowTally:
    """Counts over the rows of one source, or of all."""

    rows: int = 0  # how many
    retrieving: int = 0  # rows in which `[Retrieval]` occurs at least once (Table 3)
    # occurrences of each reflection token
    tokens: Counter[str] = field(default_factory=Counter)
    # rows by number of segments, which are as many as there are Retrieve tokens
    segments: Counter[int] = field(default_factory=Counter)
    # rows by number of passages
    passages: Counter[int] = field(default_factory=Counter)
    # rows by class of length, named by the lower edge; passages do not count
    words: Counter[int] = field(default_factory=Counter)

    def add(self, row: TrainingRow) -> None:
        """Count one row."""
        tokens = [part.token for part in row.target if isinstance(part, TargetToken)]
        words = sum(
            len(part.text.split())
            for part in row.target
            if isinstance(part, TargetText)
        )
        self.rows += 1
        self.retrieving += RETRIEVE.tokens[0] in tokens
        self.tokens.update(tokens)
        self.segments[sum(token in RETRIEVE.tokens for token in tokens)] += 1
        self.passages[sum(isinstance(part, TargetEvidence) for part in row.target)] += 1
        self.words[max(edge for edge in WORDS if edge <= words)] += 1

    def labels(self, group: LabelSet) -> list[int]:
        """Occurrences of the labels of a group, in their order."""
        return [self.tokens[token] for token in group.tokens]


def together(tallies: Sequence[RowTally]) -> RowTally:
    """Return the sum of tallies."""
    total = RowTally()
    for tally in tallies:
        for name in RowTally.__slots__:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    return total


@dataclass(slots=True)
class Statistics:
    """Counts of a whole data set."""

    # a tally for each source, in the order in which they appear
    sources: dict[str, RowTally] = field(default_factory=dict)
    # rows by `departure` from the form of the paper
    departures: Counter[str] = field(default_factory=Counter)
    # ids of the first rows with it
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, row: TrainingRow) -> None:
        """Count one row."""
        self.sources.setdefault(row.source, RowTally()).add(row)
        fault = departure(row.target)
        if fault:
            self.departures[fault] += 1
            if self.departures[fault] <= _EXAMPLES:
                self.examples.setdefault(fault, []).append(row.id)

    @property
    def total(self) -> RowTally:
        """Counts over all sources."""
        return together(list(self.sources.values()))

    def largest(self, most: int) -> list[tuple[str, RowTally]]:
        """Return sources by falling size; where there are more than `most`, the last one stands for the rest."""
        ordered = sorted(
            self.sources.items(), key=lambda item: (-item[1].rows, item[0])
        )
        if len(ordered) <= most:
            return ordered
        small = [tally for _, tally in ordered[most - 1 :]]
        return [
            *ordered[: most - 1],
            (f"{count_of(len(small), 'more sources')}", together(small)),
        ]


_KINDS = {RETRIEVE: "RNC", ISREL: "ri", ISSUP: "sss", ISUSE: "UUUUU"}
_LETTER = {"text": "t", "passage": "E"}
for _group, _letters in _KINDS.items():
    _LETTER |= dict(zip(_group.tokens, _letters, strict=True))
_FORM = re.compile(r"(?:Nt*)*(?:RE(?:rt*s?|i)t*(?:Nt*|Ct*s?t*|RE(?:rt*s?|i)t*)*)?")
"""Segments of a target, a letter a part: E a passage, t text, otherwise the letters of `_KINDS`."""


def _name(part: TargetPart) -> str:
    match part:
        case TargetToken(token):
            return token
        case TargetText():
            return "text"
        case TargetEvidence():
            return "passage"


def departure(target: Sequence[TargetPart]) -> str:
    """Return the parts from where a target departs from the form of the paper (Table 4); empty where it does not.

    A segment is text after `[No Retrieval]`; after `[Retrieval]`, a passage and its IsRel token, with an IsSup token
    behind it unless that is `[Irrelevant]`; or, once there was a passage, after `[Continue to Use Evidence]`, with an
    IsSup token. The Utility token ends the last one.
    """
    parts = [_name(part) for part in target]
    letters = "".join(_LETTER[part] for part in parts)
    segments = _FORM.match(letters)
    end = 0
    if segments:
        end = segments.end()
    if end and letters[end:] == "U":
        return ""
    return f"{', '.join(parts[end : end + 4]) or 'nothing'} where a segment or the Utility token is due"


MOST_SOURCES = 20
"""Sources in a table or plot; the smaller ones share the last line."""
MOST_PARTS = 200
"""Parts of a target that are shown."""

_MANY = 6  # values of a histogram before the last one stands for all above


@dataclass(frozen=True, slots=True)
class Inspection:
    """What there is to show."""

    files: tuple[tuple[str, str], ...]  # name and SHA-256 of each file of rows
    seed: int  # of the sample
    statistics: Statistics  # of all rows
    # rows of every source as evenly as there are enough, by source and then in the order of the files
    sample: tuple[TrainingRow, ...]
    # record of each sampled row that has one, by id
    provenance: dict[str, JsonObject] = field(default_factory=dict)
    # how often each rule chose a passage, over all provenance records
    rules: Counter[str] = field(default_factory=Counter)
    recorded: int = 0  # number of provenance records; 0 without


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
    statistics, seen = Statistics(), set[str]()
    samples: dict[str, SeededSample[TrainingRow]] = {}
    rows = chain.from_iterable(read_rows(file) for file in files)
    for row in tqdm(rows, unit=" rows", delay=1, disable=None):
        if len(files) > 1:
            if row.id in seen:
                raise UserError(f"id {row.id!r:.80} occurs in two files")
            seen.add(row.id)
        statistics.add(row)
        samples.setdefault(row.source, SeededSample(count, seed)).add(row.id, row)
    if not statistics.sources:
        raise UserError(
            f"no rows in {', '.join(str(file) for file in files) or 'no file'}"
        )
    chosen = tuple(
        _shared_out([sample.items() for sample in samples.values()], count, seed)
    )
    shown = {row.id for row in chosen}
    records: dict[str, JsonObject] = {}
    rules: Counter[str] = Counter()
    recorded = 0
    for record in chain.from_iterable(
        read_jsonl(file, _identified) for file in provenance
    ):
        recorded += 1
        for segment in _listed(record.get("segments")):
            rule = segment.get("rule") if isinstance(segment, dict) else None
            if isinstance(rule, str):
                rules[rule.partition(", ")[0][:120]] += 1
        if record["id"] in shown:
            records[record["id"]] = record
    digests = tuple((Path(file).name, sha256(Path(file))) for file in files)
    return Inspection(digests, seed, statistics, chosen, records, rules, recorded)


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
    total = inspection.statistics.total
    used = {
        part.token
        for row in inspection.sample
        for part in row.target
        if isinstance(part, TargetToken)
    }
    tokens = [token for token in COLOURS if token in used]
    sources = [*inspection.statistics.largest(MOST_SOURCES), ("all", total)]
    filters = [
        (token, sum(TargetToken(token) in row.target for row in inspection.sample))
        for token in tokens
    ]
    body = environment.get_template("page.html.j2").render(
        inspection=inspection,
        shown=f"{len(inspection.sample):,} of {count_of(total.rows, 'rows', form=',')}, seed {inspection.seed}",
        sources=[(name, tally, _figures(tally)) for name, tally in sources],
        groups=[
            (NAMES[group.role], group, _spoken(group, sources)) for group in GROUPS
        ],
        plots=_lengths(total),
        filters=filters,
        departure=departure,
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
    for histogram in (tally.segments, tally.passages):
        yield f"{sum(value * count for value, count in histogram.items()) / tally.rows:.2f}"
    for group in (ISREL, ISSUP):
        counts = tally.labels(group)
        yield f"{counts[0] / sum(counts):.1%}" if sum(counts) else "-"
    grades = tally.labels(ISUSE)
    yield (
        f"{sum(n * count for n, count in enumerate(grades, 1)) / sum(grades):.2f}"
        if sum(grades)
        else "-"
    )


def _spoken(group: LabelSet, sources: Sequence[tuple[str, RowTally]]) -> str:
    """Return the shares of a group's labels by source, as an aria label."""
    texts = []
    for name, tally in sources:
        counts = tally.labels(group)
        shares = []
        for label, count in zip(group, counts, strict=True):
            if count:
                shares.append(f"{label.name} {count:,} ({count / sum(counts):.1%})")
        if shares:
            texts.append(f"{cut(name, 60)}: {', '.join(shares)}")
    return "; ".join(texts) or "none"


def _lengths(total: RowTally) -> dict[str, dict[str, int]]:
    lengths = {}
    for low, high in zip(WORDS, [*WORDS[1:], 0], strict=True):
        name = "0" if low == 0 else f"{low}+" if not high else f"{low}-{high - 1}"
        lengths[name] = total.words[low]
    return {
        "Words of written text a row, without passages": lengths,
        "Segments a row": _histogram(total.segments),
        "Passages a row": _histogram(total.passages),
    }


def _histogram(values: Counter[int]) -> dict[str, int]:
    bars = {str(n): values[n] for n in range(min(max(values), _MANY) + 1)}
    if max(values) > _MANY:
        bars[f"{_MANY + 1}+"] = sum(
            count for value, count in values.items() if value > _MANY
        )
    return bars


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
