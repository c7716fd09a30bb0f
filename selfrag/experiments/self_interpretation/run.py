"""Runs the grid: every question in every cell, once, recorded as it comes; reads a run back.

One directory holds a generator's run: a manifest, the questions, and a file of records for each cell and each test.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.records import (
    RecordFile,
    RunDirectory,
    Spent,
    read_manifest,
    read_records,
)
from selfrag.evaluation.runner import on_demand
from selfrag.experiments.self_interpretation import replies
from selfrag.experiments.self_interpretation.generators import (
    BATCH,
    Generator,
    ReplyWriter,
    WrittenReply,
    prompt_of,
)
from selfrag.experiments.self_interpretation.grid import GridCell
from selfrag.experiments.self_interpretation.prompts import COUNTERFACTUAL, GridTemplate
from selfrag.experiments.self_interpretation.questions import (
    Questions,
    Trial,
    read_questions,
    relevant,
)
from selfrag.interface import (
    Failed,
    Progress,
    UserError,
    count_of,
    printable,
    replace_surrogates,
)

KIND = "supported questions"
Results = dict[str, dict[str, Any]]
"""Name of a file of records to items, failed, seconds and cached tokens."""
Made = tuple[Mapping[str, Any], int]
"""A record with its `id`, and how many prompt tokens were not computed again."""
RecordsFile = tuple[GridCell, str, Mapping[str, Any]]
"""A cell, a test of it or nothing, and what else decides the records."""


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run directory."""

    folder: Path
    identity: Mapping[str, Any]  # what decides the records, as the manifest has it
    questions: Questions
    template: GridTemplate  # of the prompts, whose tags end a generation
    # what the manifest says of each file of records
    files: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[GridCell, ...]:
        """Return the finished cells, in the order of the run."""
        cells = []
        for name, entry in self.files.items():
            if "." not in name and "result" in entry:
                cells.append(GridCell.from_dict(entry["settings"]["cell"]))
        return tuple(cells)

    def select(self, patterns: Sequence[str]) -> tuple[GridCell, ...]:
        """Return finished cells whose names match one of the patterns, such as `k5-*-direct`; without a pattern all."""
        cells = {cell.name: cell for cell in self.cells}
        names: list[str] = []
        for pattern in patterns:
            matching = fnmatch.filter(cells, pattern)
            if not matching:
                shown = [*cells][:4] + ["..."] * (len(cells) > 4)
                raise UserError(
                    f"--cell {pattern}: no such cell in {self.folder};"
                    f" there are {', '.join(shown) or 'none that is finished'}"
                )
            names += matching
        if patterns:
            return tuple(cell for name, cell in cells.items() if name in names)
        return tuple(cells.values())

    def records(self, cell: GridCell, test: str = "") -> list[JsonObject]:
        """Return the records of a cell, or of a test of a cell; none where they are not finished."""
        name = file_name(cell, test)
        if "result" not in self.files.get(name, {}):
            return []
        return read_records(self.folder / f"{name}.jsonl")

    def read(self, made: Trial, text: str) -> replies.GridReply:
        """Return a generation, taken apart."""
        ends = (self.template.opening, self.template.closing)
        return replies.read_reply(
            text, made.passage_ids, explains=made.strategy.explains, ends=ends
        )


def file_name(cell: GridCell, test: str) -> str:
    """Return the name of the records of a cell, or of a test of it."""
    return f"{cell.name}.{test}" if test else cell.name


def read_grid(folder: Path) -> GridRun:
    """Read a run directory."""
    manifest = read_manifest(folder)
    identity, files = manifest["identity"], manifest["files"]
    if (
        not isinstance(identity, dict)
        or "questions" not in identity
        or "generator" not in identity
    ):
        raise UserError(
            f"{folder} holds a run of something else than `selfrag interpret`"
        )
    path = next((Path(entry["path"]) for entry in files.values()), folder)
    questions = read_questions(folder, path, identity)
    return GridRun(
        folder,
        identity,
        questions,
        GridTemplate(**identity["generator"]["template"]),
        files,
    )


def record(
    run: GridRun,
    what: str,
    files: Sequence[RecordsFile],
    make: Callable[[GridCell, str, Sequence[str]], list[Made]],
    metrics: Sequence[str] = (),
    *,
    retry_failed: bool = False,
    batch: int = BATCH,
) -> Results:
    """Make the records that are not there yet in batches, and append them as they come.

    `make` gives, from a cell, a test of it and ids of questions, their records in order.
    """
    questions, directory = run.questions, RunDirectory(run.folder, run.identity)
    questions.write(run.folder)
    ids = [item.id for item in questions.items]
    bare = {"task": {"kind": KIND, "metrics": list(metrics)}, "items": len(ids)}
    shared = {
        **bare,
        "with_passages": sum(bool(item.passages) for item in questions.items),
        "data": questions.data,
    }
    results = {}
    with Progress(what, "reply", len(files) * len(ids), quiet=0) as progress:
        for cell, test, settings in files:
            name = file_name(cell, test)
            directory.admit_entry(
                name, questions.path, {**shared, "cell": asdict(cell), **settings}
            )
            with closing(RecordFile(run.folder, name)) as records:
                if retry_failed:
                    records.reopen()
                missing = [key for key in ids if key not in records.done]
                progress.skip(len(ids) - len(missing))
                for start in range(0, len(missing), batch):
                    some, before = missing[start : start + batch], time.perf_counter()
                    made = make(cell, test, some)
                    seconds = (time.perf_counter() - before) / len(some)
                    for row, cached in made:
                        records.append(row, Spent(seconds, cached))
                    progress.advance(len(some), name)
                results[name] = records.finish(ids)
            directory.result(name, results[name])
    return results


def run_grid(
    generator: Generator,
    questions: Questions,
    cells: Sequence[GridCell],
    out: Path,
    *,
    retry_failed: bool = False,
) -> Results:
    """Run a grid, or continue it; the generator is loaded only if there is something to ask."""
    for cell in cells if generator.layout == "reflective" else ():
        if cell.examples or cell.strategy.explains:
            raise UserError(
                f"{cell.name}: Self-RAG decoding has no prompt; give --prompt basic --examples 0"
            )
    made = {
        "generator": generator.identity(),
        "questions": questions.identity(),
        "data": questions.data,
    }
    run = GridRun(out, {"name": generator.name, **made}, questions, generator.template)
    with on_demand(generator.load) as writer:
        files: list[RecordsFile] = [(cell, "", {}) for cell in cells]
        return record(
            run,
            "interpret",
            files,
            partial(_answers, run, writer),
            replies.NAMES,
            retry_failed=retry_failed,
            batch=generator.batch,
        )


def planned(
    generator: Generator, questions: Questions, cells: Sequence[GridCell]
) -> str:
    """Return what a grid asks, in one line: replies, words of the prompts, and new tokens at most. Loads no model."""
    ids = [item.id for item in questions.items]
    count = len(cells) * len(ids)
    summary = (
        f"{count_of(len(cells), 'cells')} of {count_of(len(ids), 'questions')}:"
        f" {count_of(count, 'replies')} of at most {count_of(generator.max_tokens, 'tokens')}"
    )
    if generator.layout == "reflective":  # has no prompt
        return summary
    trials = (trial for cell in cells for trial in questions.trials(cell, ids))
    words = sum(len(prompt_of(generator.template, trial).split()) for trial in trials)
    return f"{summary}; {count_of(words, 'words')} in prompts, {words // max(1, count)} each"


def _answers(
    run: GridRun,
    writer: Callable[[], ReplyWriter],
    cell: GridCell,
    _: str,
    ids: Sequence[str],
) -> list[Made]:
    trials = run.questions.trials(cell, ids)
    results = writer().write(trials)
    return [_record(run, *pair) for pair in zip(trials, results, strict=True)]


def _record(run: GridRun, made: Trial, result: WrittenReply | Failed) -> Made:
    """Return what is kept of a reply; contexts are recorded by the ids of their passages."""
    relevant_ids = relevant(made.item, made.passages, run.questions.relevance)
    base: JsonObject = {"id": made.item.id, "relevant": sorted(relevant_ids)}
    if isinstance(result, Failed):
        return base | {
            "error": printable(result.reason),
            "scores": replies.scored(made, None, relevant_ids),
        }, 0
    text, ids = replace_surrogates(result.text), made.passage_ids
    reply = run.read(made, text)

    def passages(names: Sequence[str]) -> list[str]:
        return [ids[name] for name in names]

    claim, followed = None, None
    if made.strategy == COUNTERFACTUAL:
        claim = replies.order_claim(reply)
    if made.strategy.needs_examples:
        followed = replies.followed_example(reply)
    kept = {
        "text": text,
        "finish": result.finish,
        "answer": reply.answer,
        "explanation": reply.explanation,
        "read": [passage.id for passage in made.passages],
        "cited": passages(reply.cited),
        "wrong": list(reply.wrong),
        "named": passages(reply.explained),
        "credited": passages(replies.credited(reply)),
        "claim": claim,
        "followed": followed,
        "ran_on": reply.ran_on,
        "usage": dict(result.usage),
        **({"judgments": list(result.judgments)} if result.judgments else {}),
        "found": replies.answers_found(made.item, reply.answer),
        "error": None,
        "scores": replies.scored(made, reply, relevant_ids, text),
    }
    return base | kept, result.cached_tokens
