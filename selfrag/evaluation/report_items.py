"""Items of finished runs with what every system made of them, read from records and data files for a page to show."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.decoding.trace import Trace, trace_of
from selfrag.errors import UserError
from selfrag.evaluation.comparison import SystemRun
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import Part, is_count, ratio
from selfrag.evaluation.records import item_id, items_of
from selfrag.jsonl import read_jsonl


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one system made of an item."""

    system: str  # its name
    text: str  # the answer
    error: str | None  # why there is none; None if there is one
    segments: tuple[tuple[str, str | None], ...]  # text and id of the cited passage, of each piece
    read: tuple[str, ...]  # ids of the passages that the model was shown
    usage: Mapping[str, int]  # counts by name
    scores: Mapping[str, Part | None]  # metric to part, the headline first; None where a metric says nothing
    trace: Trace | None  # everything that was considered; None if the run kept none
    damage: str | None = None  # why a trace that is there cannot be read

    @property
    def share(self) -> float | None:
        """The headline figure of this item alone; None where it says nothing, or says how much and not how well."""
        head, part = next(iter(self.scores.items()), ("", None))
        return None if is_count(head) else ratio([part])


@dataclass(frozen=True, slots=True)
class Case:
    """An item and its outcomes."""

    id: str  # of the item
    item: Item | None  # question, gold and passages; None if the data file is not at hand
    outcomes: tuple[Outcome, ...]  # of every system, in the order of the runs

    @property
    def question(self) -> str | None:
        """As asked; None if neither the data file nor a trace is at hand."""
        if self.item is not None:
            return self.item.instruction
        return next((one.trace.question for one in self.outcomes if one.trace is not None), None)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Of the item and of all traces, each id once."""
        found = {passage.id: passage for passage in (self.item.passages if self.item is not None else ())}
        for outcome in self.outcomes:
            for decision in outcome.trace.decisions if outcome.trace is not None else ():
                for passage in decision.passages:
                    found.setdefault(passage.id, passage)
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The cases of one file."""

    name: str  # of the file
    cases: tuple[Case, ...]  # in the order of the file
    items: int  # how many the runs have
    note: str | None = None  # why there is no question or gold answer; None if there is


def read_cases(runs: Sequence[SystemRun], most: int, *, data: Path | None = None, seed: int = 0) -> list[CaseFile]:
    """Cases of every file: a seeded sample, in which items that failed come first.

    Args:
        runs: of the same items, as `read_runs` gives them.
        most: cases of a file, at least 0.
        data: folder where the data files are now; by default where the first run read them.
        seed: of the sample.

    Raises:
        UserError: `most` is negative, or records are damaged.
    """
    if most < 0:
        raise UserError(f"{most} items; 0 or more can be shown")
    return [_file(runs, name, most, data, seed) for name in runs[0].files]


def _file(runs: Sequence[SystemRun], name: str, most: int, data: Path | None, seed: int) -> CaseFile:
    ids = runs[0].files[name].ids
    if most == 0:
        return CaseFile(name, (), len(ids))
    failed: set[str] = set()
    for run in runs:
        failed |= {key for key, error in read_jsonl(run.folder / f"{name}.jsonl", _failure) if error}
    order = random.Random(seed).sample(ids, len(ids))  # noqa: S311 - no cryptography
    chosen = set(sorted(order, key=lambda key: key not in failed)[:most])
    items, note = _items(runs[0].folder, name, data)
    outcomes = [_outcomes(run, name, chosen) for run in runs]
    cases = tuple(Case(key, items.get(key), tuple(one[key] for one in outcomes)) for key in ids if key in chosen)
    return CaseFile(name, cases, len(ids), note)


def _outcomes(run: SystemRun, name: str, chosen: set[str]) -> dict[str, Outcome]:
    result = run.files[name]
    places = {key: i for i, key in enumerate(result.ids)}

    def parse(record: dict[str, Any]) -> Outcome | None:
        key = item_id(record)
        if key not in chosen:
            return None
        return _outcome(run.name, record, {metric: result.scores[metric][places[key]] for metric in result.metrics})

    found = read_jsonl(run.folder / f"{name}.jsonl", lambda record: (record.get("id"), parse(record)))
    return {str(key): outcome for key, outcome in found if outcome is not None}


def _outcome(system: str, record: Mapping[str, Any], scores: Mapping[str, Part | None]) -> Outcome:
    trace, damage = None, None
    if record.get("trace") is not None:
        try:
            trace = trace_of(record["trace"])
        except UserError as error:
            damage = str(error)
    pairs = [pair for pair in _listed(record.get("segments")) if isinstance(pair, list) and len(pair) == 2]
    usage = record.get("usage")
    return Outcome(
        system=system,
        text=str(record.get("text") or ""),
        error=None if record.get("error") is None else str(record["error"]),
        segments=tuple((str(text), None if cited is None else str(cited)) for text, cited in pairs),
        read=tuple(map(str, _listed(record.get("read")))),
        usage={key: int(n) for key, n in usage.items() if isinstance(n, int)} if isinstance(usage, dict) else {},
        scores=scores,
        trace=trace,
        damage=damage,
    )


def _items(folder: Path, name: str, data: Path | None) -> tuple[dict[str, Item], str | None]:
    """Items of the data file; none and why, if it is not at hand."""
    try:
        return items_of(folder, name, data), None
    except (UserError, OSError, KeyError) as error:
        return {}, f"{error}; questions come from traces"


def _failure(record: dict[str, Any]) -> tuple[str, bool]:
    return item_id(record), record.get("error") is not None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
