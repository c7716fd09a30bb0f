"""Which items of finished runs a page shows, read from records and data files.

Both are of others: what cannot be read of one record is said beside it and spoils no other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfrag.decoding.trace_json import trace_of
from selfrag.errors import UserError
from selfrag.evaluation.compare_runs import SystemRun
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.reporting.cases import Case, CaseFile, Outcome
from selfrag.evaluation.runner_items import items_of
from selfrag.evaluation.runner_records import item_id
from selfrag.jsonl import read_jsonl


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
