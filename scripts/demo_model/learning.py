"""What scripts share that learn from a model's own answers: a log from which a second run goes on, and an AUC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from selfrag.common.progress import Progress
from selfrag.common.runs import RunLog
from selfrag.common.validation import validate
from selfrag.evaluation.intervals import Estimate, pooled_auc

Work = TypeVar("Work")
Record = TypeVar("Record", bound=Any)


def complete(
    work: Mapping[str, Work],
    kind: type[Record],
    file: Path,
    do: Callable[[Sequence[Work]], Iterable[Record]],
    size: int,
) -> list[Record]:
    """Return the records of work, by their ids; those of an earlier run are in the file, which gets the others.

    Args:
        work: id to what is to be done.
        kind: a dataclass with an `id`.
        file: JSON Lines.
        do: does a part of the work; what it cannot do has no record.
        size: of a part.
    """
    known: dict[str, Record] = {}

    def take(values: dict[str, Any]) -> None:
        record = validate(kind, values)
        known[record.id] = record

    with RunLog(file, None, take) as log:
        waiting = [item for key, item in work.items() if key not in known]
        with Progress("asking", "item", len(waiting), quiet=0) as progress:
            for start in range(0, len(waiting), size):
                part = waiting[start : start + size]
                for record in do(part):
                    known[record.id] = record
                    log.append(asdict(record))
                progress.advance(len(part))
    return [known[key] for key in work if key in known]


def area(truth: Sequence[bool], scores: Sequence[float], seed: int) -> Estimate:
    """Return the AUC of scores [n] for what is true [n]."""
    positives: list[list[float]] = []
    negatives: list[list[float]] = []
    for true, score in zip(truth, scores, strict=True):
        positives.append([score] if true else [])
        negatives.append([] if true else [score])
    return pooled_auc(positives, negatives, seed=seed)
