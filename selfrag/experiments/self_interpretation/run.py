"""Runs the grid: every question in every cell, once, recorded as it comes; reads a run back.

One directory holds a generator's run: a manifest, the questions, and a file of records for each cell and each test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from selfrag.decoding.requests import Failed
from selfrag.errors import UserError
from selfrag.evaluation.on_demand import on_demand
from selfrag.evaluation.runner_manifest import RunDirectory, read_manifest
from selfrag.evaluation.runner_records import RecordFile, Spent, read_records
from selfrag.experiments.self_interpretation import replies
from selfrag.experiments.self_interpretation.grid import Cell, Questions, Trial, read_questions, relevant
from selfrag.experiments.self_interpretation.prompts import COUNTERFACTUAL, Template
from selfrag.experiments.self_interpretation.writers import BATCH, Generator, Writer, Written
from selfrag.untrusted import printable, whole

KIND = "supported questions"

Results = dict[str, dict[str, Any]]
"""Name of a file of records to items, failed, seconds and cached tokens."""
Made = tuple[Mapping[str, Any], int]
"""A record with its `id`, and how many prompt tokens were not computed anew."""
File = tuple[Cell, str, Mapping[str, Any]]
"""A cell, a test of it or nothing, and what else decides the records."""


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run directory."""

    folder: Path
    identity: Mapping[str, Any]  # what decides the records, as the manifest has it
    questions: Questions
    template: Template  # of the prompts, whose tags end a generation
    files: Mapping[str, Any] = field(default_factory=dict)  # what the manifest says of each file of records

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Finished ones, in the order of the run."""
        entries = (entry for name, entry in self.files.items() if "." not in name and "result" in entry)
        return tuple(Cell.from_dict(entry["settings"]["cell"]) for entry in entries)

    def select(self, patterns: Sequence[str]) -> tuple[Cell, ...]:
        """Finished cells whose names match one of the patterns, such as `k5-*-direct`; all where there is no pattern.

        Raises:
            UserError: a pattern that matches nothing.
        """
        names = [cell.name for cell in self.cells]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])]) or "none that is finished"
                raise UserError(f"--cell {pattern}: no such cell in {self.folder}; there are {shown}")
        return tuple(c for c in self.cells if not patterns or any(fnmatchcase(c.name, one) for one in patterns))

    def records(self, cell: Cell, test: str = "") -> list[dict[str, Any]]:
        """Records of a cell, or of a test of a cell; none where they are not finished."""
        name = file_name(cell, test)
        return read_records(self.folder / f"{name}.jsonl") if "result" in self.files.get(name, {}) else []

    def read(self, made: Trial, text: str) -> replies.Reply:
        """A generation, taken apart."""
        ends = (self.template.opening, self.template.closing)
        return replies.read_reply(text, made.passage_ids, explains=made.asked.explains, ends=ends)


def file_name(cell: Cell, test: str) -> str:
    """Of the records of a cell, or of a test of it."""
    return f"{cell.name}.{test}" if test else cell.name


def read_grid(folder: Path) -> GridRun:
    """Read a run directory.

    Raises:
        UserError: it holds no run of a grid, or was changed.
    """
    manifest = read_manifest(folder)
    identity, files = manifest["identity"], manifest["files"]
    if not isinstance(identity, dict) or "questions" not in identity or "generator" not in identity:
        raise UserError(f"{folder} holds a run of something else than `selfrag interpret`")
    path = next((Path(entry["path"]) for entry in files.values()), folder)
    questions = read_questions(folder, path, identity)
    return GridRun(folder, identity, questions, Template(**identity["generator"]["template"]), files)


def record(
    run: GridRun,
    what: str,
    files: Sequence[File],
    make: Callable[[Cell, str, Sequence[str]], list[Made]],
    metrics: Sequence[str] = (),
    *,
    retry_failed: bool = False,
    batch: int = BATCH,
) -> Results:
    """Make the records that are not there yet in batches, and append them as they come.

    Args:
        run: whose directory they go into.
        what: is done, for the progress bar.
        files: of records, each with all questions.
        make: from a cell, a test of it, and ids of questions to their records, in order.
        metrics: names of the scores of a record.
        retry_failed: make records again that hold an error.
        batch: records that are made together: a kill loses at most the work on these.

    Raises:
        UserError: the directory holds another run, the disk is full, or `make` raised it; what was recorded is kept.
    """
    from tqdm import tqdm

    questions, directory = run.questions, RunDirectory(run.folder, run.identity)
    questions.write(run.folder)
    ids = [item.id for item in questions.items]
    bare = {"task": {"kind": KIND, "metrics": list(metrics)}, "items": len(ids)}
    shared = {**bare, "with_passages": sum(bool(item.passages) for item in questions.items), "data": questions.data}
    results = {}
    with tqdm(total=len(files) * len(ids), desc=what, unit="reply", disable=None) as bar:
        for cell, test, settings in files:
            name = file_name(cell, test)
            directory.admit_entry(name, questions.path, {**shared, "cell": asdict(cell), **settings})
            with closing(RecordFile(run.folder, name)) as records:
                if retry_failed:
                    records.reopen()
                missing = [one for one in ids if one not in records.done]
                bar.update(len(ids) - len(missing))
                for start in range(0, len(missing), batch):
                    some, before = missing[start : start + batch], time.perf_counter()
                    made = make(cell, test, some)
                    seconds = (time.perf_counter() - before) / len(some)
                    for one, cached in made:
                        records.append(one, Spent(seconds, cached))
                    bar.update(len(some))
                results[name] = records.finish(ids)
            directory.result(name, results[name])
    return results


def run_grid(
    generator: Generator, questions: Questions, cells: Sequence[Cell], out: Path, *, retry_failed: bool = False
) -> Results:
    """Run a grid, or go on with it.

    Args:
        generator: what answers; loaded only if there is something to ask.
        questions: what is asked.
        cells: of the grid; Self-RAG decoding takes those without examples and explanation.
        out: the run directory.
        retry_failed: ask again what failed before.

    Raises:
        UserError: a cell does not fit, or the model, server or directory cannot be used; what was recorded is kept.
    """
    for cell in cells if generator.layout == "reflective" else ():
        if cell.examples or cell.asked.explains:
            raise UserError(f"{cell.name}: Self-RAG decoding has no prompt; give --prompt basic --examples 0")
    made = {"generator": generator.identity(), "questions": questions.identity(), "data": questions.data}
    run = GridRun(out, {"name": generator.name, **made}, questions, generator.template)
    options: dict[str, Any] = {"retry_failed": retry_failed, "batch": generator.batch}
    with on_demand(generator.load) as writer:
        files: list[File] = [(cell, "", {}) for cell in cells]
        return record(run, "interpret", files, partial(_answers, run, writer), replies.NAMES, **options)


def _answers(run: GridRun, writer: Callable[[], Writer], cell: Cell, _: str, ids: Sequence[str]) -> list[Made]:
    trials = run.questions.trials(cell, ids)
    return [_record(run, made, result) for made, result in zip(trials, writer().write(trials), strict=True)]


def _record(run: GridRun, made: Trial, result: Written | Failed) -> Made:
    """What is kept of a reply; contexts are recorded by the ids of their passages."""
    wanted = relevant(made.item, made.passages, run.questions.relevance)
    base: dict[str, Any] = {"id": made.item.id, "relevant": sorted(wanted)}
    if isinstance(result, Failed):
        return base | {"error": printable(result.reason), "scores": replies.scored(made, None, wanted)}, 0
    text, ids = whole(result.text), made.passage_ids
    reply = run.read(made, text)
    kept = {
        "text": text,
        "finish": result.finish,
        "answer": reply.answer,
        "explanation": reply.explanation,
        "read": [passage.id for passage in made.passages],
        "cited": [ids[name] for name in reply.cited],
        "wrong": list(reply.wrong),
        "named": [ids[name] for name in reply.named],
        "credited": [ids[name] for name in replies.credited(reply)],
        "claim": replies.order_claim(reply) if made.asked == COUNTERFACTUAL else None,
        "followed": replies.followed_example(reply) if made.asked.needs_examples else None,
        "ran_on": reply.ran_on,
        "usage": dict(result.usage),
        **({"judgments": list(result.judgments)} if result.judgments else {}),
        "found": replies.answers_found(made.item, reply.answer),
        "error": None,
        "scores": replies.scored(made, reply, wanted, text),
    }
    return base | kept, result.cached_tokens
