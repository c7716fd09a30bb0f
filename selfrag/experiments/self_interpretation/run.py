"""Runs the grid: every question in every cell, once, recorded as it comes; reads a run back.

One directory holds a generator's run: a manifest, the questions, and a file of records for each cell and each test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from selfrag.decoding.requests import Failed
from selfrag.errors import UserError
from selfrag.evaluation.on_demand import Closeable, on_demand
from selfrag.evaluation.runner_manifest import RunDirectory, read_manifest
from selfrag.evaluation.runner_records import RecordFile, Spent, read_records
from selfrag.experiments.self_interpretation.grid import Cell, Questions, Trial, read_questions, relevant
from selfrag.experiments.self_interpretation.prompts import COUNTERFACTUAL, Template
from selfrag.experiments.self_interpretation.replies import (
    NAMES,
    Reply,
    answers_found,
    credited,
    followed_example,
    order_claim,
    read_reply,
    scored,
)
from selfrag.experiments.self_interpretation.writers import BATCH, Generator, Writer, Written
from selfrag.untrusted import printable, whole

KIND = "supported questions"

Records = list[dict[str, Any]]
Results = dict[str, dict[str, Any]]
"""Name of a file of records to items, failed, seconds and cached tokens."""
Made = tuple[Mapping[str, Any], int]
"""A record with its `id`, and how many prompt tokens were not computed anew."""
C = TypeVar("C", bound=Closeable)


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run directory.

    Attributes:
        folder: where.
        identity: what decides the records, as the manifest has it.
        questions: what is asked.
        template: of the prompts, whose tags end a generation.
        files: what the manifest says of each file of records.
    """

    folder: Path
    identity: Mapping[str, Any]
    questions: Questions
    template: Template
    files: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Finished ones, in the order of the run."""
        entries = (entry for name, entry in self.files.items() if "." not in name and "result" in entry)
        return tuple(Cell.from_dict(entry["settings"]["cell"]) for entry in entries)

    def records(self, cell: Cell, test: str = "") -> Records | None:
        """Records of a cell, or of a test of a cell; None where they are not finished."""
        name = f"{cell.name}.{test}" if test else cell.name
        return read_records(self.folder / f"{name}.jsonl") if "result" in self.files.get(name, {}) else None

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

    def read(self, made: Trial, text: str) -> Reply:
        """A generation, taken apart."""
        ends = (self.template.opening, self.template.closing)
        return read_reply(text, made.passage_ids, explains=made.asked.explains, ends=ends)


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


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes records in batches, appends them as they come, and goes on where an earlier run stopped.

    Attributes:
        run: whose directory they go into.
        directory: of the run.
        retry_failed: make records again that hold an error.
        progress: called with the number of records that are done.
        batch: records that are made together.
    """

    run: GridRun
    directory: RunDirectory
    retry_failed: bool = False
    progress: Callable[[int], object] = lambda done: None
    batch: int = BATCH

    def fill(
        self, name: str, make: Callable[[Sequence[str]], list[Made]], metrics: Sequence[str], **settings: Any
    ) -> dict[str, Any]:
        """Make the records of all questions that are not there yet.

        Args:
            name: of the file of records.
            make: from ids of questions to their records, in order.
            metrics: names of the scores of a record.
            settings: what else decides the records, for the manifest.

        Returns:
            Items, failed, seconds and cached tokens.

        Raises:
            UserError: records of other settings are there, the disk is full, or `make` raised it; what was recorded is
                kept.
        """
        questions = self.run.questions
        entry = {
            "task": {"kind": KIND, "metrics": list(metrics)},
            "items": len(questions.items),
            "with_passages": sum(bool(item.passages) for item in questions.items),
            "data": questions.data,
            **settings,
        }
        self.directory.admit_entry(name, questions.path, entry)
        records = RecordFile(self.run.folder, name)
        if self.retry_failed:
            records.reopen()
        ids = [item.id for item in questions.items]
        missing = [one for one in ids if one not in records.done]
        self.progress(len(ids) - len(missing))
        for start in range(0, len(missing), self.batch):
            some, before = missing[start : start + self.batch], time.perf_counter()
            made = make(some)
            seconds = (time.perf_counter() - before) / len(some)
            for record, cached in made:
                records.append(record, Spent(seconds, cached))
            self.progress(len(some))
        found = records.finish(ids)
        self.directory.result(name, found)
        return found


@contextmanager
def recording(
    run: GridRun, what: str, files: int, load: Callable[[], C], *, retry_failed: bool = False, batch: int = BATCH
) -> Iterator[tuple[Recorder, Callable[[], C]]]:
    """A recorder with a progress bar, and what answers, which is loaded only if there is something to ask.

    Args:
        run: to be recorded, or gone on with.
        what: is done, for the bar.
        files: of records, each of all questions.
        load: what answers.
        retry_failed: see `Recorder`.
        batch: see `Recorder`.

    Raises:
        UserError: the directory holds another run.
    """
    from tqdm import tqdm

    directory = RunDirectory(run.folder, run.identity)
    total = files * len(run.questions.items)
    with tqdm(total=total, desc=what, unit="reply", disable=None) as bar, on_demand(load) as loaded:
        yield Recorder(run, directory, retry_failed, bar.update, batch), loaded


def run_grid(
    generator: Generator, questions: Questions, cells: Sequence[Cell], out: Path, *, retry_failed: bool = False
) -> Results:
    """Run a grid, or go on with it.

    Args:
        generator: what answers.
        questions: what is asked.
        cells: of the grid; Self-RAG decoding takes those without examples and explanation, others are refused.
        out: the run directory.
        retry_failed: ask again what failed before.

    Raises:
        UserError: the model, server or directory cannot be used; what was recorded is kept.
    """
    if generator.layout == "reflective" and (unfit := next((cell for cell in cells if not cell.reflective), None)):
        raise UserError(f"{unfit.name}: Self-RAG decoding has no prompt; give --prompt basic --examples 0")
    identity = {
        "name": generator.name,
        "generator": generator.identity(),
        "questions": questions.identity(),
        "data": questions.data,
    }
    run = GridRun(out, identity, questions, generator.template)
    options: dict[str, Any] = {"retry_failed": retry_failed, "batch": generator.batch}
    with recording(run, "interpret", len(cells), generator.load, **options) as (recorder, writer):
        questions.write(out)
        return {
            cell.name: recorder.fill(cell.name, partial(_records, run, cell, writer), NAMES, cell=cell.as_dict())
            for cell in cells
        }


def _records(run: GridRun, cell: Cell, writer: Callable[[], Writer], ids: Sequence[str]) -> list[Made]:
    trials = run.questions.trials(cell, ids)
    return [_record(run, made, result) for made, result in zip(trials, writer().write(trials), strict=True)]


def _record(run: GridRun, made: Trial, result: Written | Failed) -> Made:
    """What is kept of a reply: the text as it came, its parts, and what the explanation claims.

    Contexts are recorded by the ids of their passages.
    """
    wanted = relevant(made.item, made.passages, run.questions.relevance)
    record: dict[str, Any] = {"id": made.item.id, "relevant": sorted(wanted)}
    if isinstance(result, Failed):
        return record | {"error": printable(result.reason), "scores": scored(made, None, wanted)}, 0
    text, ids = whole(result.text), made.passage_ids
    reply = run.read(made, text)
    record |= {
        "text": text,
        "finish": result.finish,
        "answer": reply.answer,
        "explanation": reply.explanation,
        "read": [passage.id for passage in made.passages],
        "cited": [ids[name] for name in reply.cited],
        "wrong": list(reply.wrong),
        "named": [ids[name] for name in reply.named],
        "credited": [ids[name] for name in credited(reply)],
        "claim": order_claim(reply) if made.asked == COUNTERFACTUAL else None,
        "followed": followed_example(reply) if made.asked.needs_examples else None,
        "ran_on": reply.ran_on,
        "usage": dict(result.usage),
        **({"judgments": list(result.judgments)} if result.judgments else {}),
        "found": answers_found(made.item, reply.answer),
        "error": None,
        "scores": scored(made, reply, wanted, text),
    }
    return record, result.cached_tokens
