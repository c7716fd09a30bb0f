"""Runs the counterfactual tests of recorded replies, and records whether the answer changed. Loads no model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfrag.evaluation.metrics.answers import token_f1
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.normalisation import normalise
from selfrag.evaluation.runner_records import read_records
from selfrag.experiments.interpretation.claims import Claim
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.interventions import OTHER_ORDER, Changed, change, tests_of
from selfrag.experiments.interpretation.replies import Reply
from selfrag.experiments.interpretation.run import Job
from selfrag.experiments.interpretation.scoring import answers_found
from selfrag.experiments.interpretation.streaming import Made, Stream
from selfrag.experiments.interpretation.trials import Trial, Written
from selfrag.experiments.interpretation.writers import Writer
from selfrag.intrinsics.contract import Failed
from selfrag.untrusted import printable, whole

NAMES = ("changed", "answers_changed", "similarity", "as_claimed")
"""Whether the answer is another one (normalised, without citations), whether other right answers are in it, F1 of the
words of both, and whether it did what the explanation said."""


def put_to_test(
    job: Job, cells: Sequence[Cell], stream: Stream, writer: Callable[[], Writer]
) -> dict[str, dict[str, Any]]:
    """Put the replies of finished cells to their tests.

    Args:
        job: as the cells were run.
        cells: all finished.
        stream: of the same run.
        writer: the generator of the run; called only if there is something to ask.

    Returns:
        Name of cell and test to items, failed, seconds and cached tokens.

    Raises:
        UserError: as `run_cells`.
    """
    results = {}
    for cell in cells:
        records = {record["id"]: record for record in read_records(stream.directory.folder / f"{cell.name}.jsonl")}
        for test in tests_of(cell):

            def make(
                some: list[str], cell: Cell = cell, test: str = test, records: Mapping[str, Any] = records
            ) -> list[Made]:
                return _answers(job, cell, test, [records[one] for one in some], writer)

            name = f"{cell.name}.{test}"
            entry = job.entry(NAMES, cell=cell.as_dict(), test=test)
            results[name] = stream.fill(name, job.path, entry, list(records), make)
    return results


def _answers(
    job: Job, cell: Cell, test: str, records: Sequence[Mapping[str, Any]], writer: Callable[[], Writer]
) -> list[Made]:
    made = [job.trial(cell, record["id"]) for record in records]
    seed = job.questions.showing.seed
    changed = [change(test, one, record, seed) for one, record in zip(made, records, strict=True)]
    asked = [one.trial for one in changed if one.trial is not None]
    results = iter(writer().write(asked) if asked else ())
    return [
        _undefined(record, one) if one.trial is None else _record(job, test, record, one.trial, next(results))
        for record, one in zip(records, changed, strict=True)
    ]


def _undefined(record: Mapping[str, Any], changed: Changed) -> Made:
    scores: dict[str, Part | None] = dict.fromkeys(NAMES)
    return {"id": record["id"], "error": None, "undefined": changed.reason, "scores": scores}, 0


def _record(job: Job, test: str, before: Mapping[str, Any], made: Trial, result: Written | Failed) -> Made:
    base: dict[str, Any] = {"id": before["id"], "undefined": None, "read": [passage.id for passage in made.passages]}
    if isinstance(result, Failed):
        return base | {"error": printable(result.reason), "scores": dict.fromkeys(NAMES)}, 0
    text = whole(result.text)
    reply = job.read(made, text)
    found = answers_found(made.item, reply.answer)
    old = Reply(before["answer"]).plain
    changed = normalise(old) != normalise(reply.plain)
    claim = before.get("claim") if test == OTHER_ORDER else None
    scores: dict[str, Part | None] = {
        "changed": (float(changed), 1.0),
        "answers_changed": (float(set(found) != set(before["found"])), 1.0),
        "similarity": (token_f1(reply.plain, [old]), 1.0),
        "as_claimed": None if claim is None else (float(changed == (claim == Claim.CHANGES)), 1.0),
    }
    kept = {"text": text, "answer": reply.answer, "found": list(found), "claim": claim, "usage": dict(result.usage)}
    return base | kept | {"error": None, "scores": scores}, result.cached_tokens
