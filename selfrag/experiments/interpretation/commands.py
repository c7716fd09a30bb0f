"""The edge of the grid: a generator and a file in, a run directory out, and the tests of that run. Loads models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from selfrag.errors import UserError
from selfrag.evaluation.on_demand import on_demand
from selfrag.evaluation.runner_manifest import RunDirectory, model_files
from selfrag.evaluation.tasks.evidence import nothing_searched
from selfrag.experiments.interpretation.faithfulness import put_to_test
from selfrag.experiments.interpretation.generator import Generator
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.interventions import tests_of
from selfrag.experiments.interpretation.judging import Judges, judge_cells
from selfrag.experiments.interpretation.reading import GridRun, read_grid
from selfrag.experiments.interpretation.reflective_writer import fits
from selfrag.experiments.interpretation.run import Job, run_cells
from selfrag.experiments.interpretation.source import Drawing, draw
from selfrag.experiments.interpretation.streaming import Stream
from selfrag.experiments.interpretation.template import Template

Results = dict[str, dict[str, Any]]
CITATIONS = "citation_generation"
"""The intrinsic that says which contexts an answer rests on."""


def run_grid(
    generator: Generator, drawing: Drawing, cells: Sequence[Cell], out: Path, *, retry_failed: bool = False
) -> Results:
    """Run a grid, or go on with it.

    Args:
        generator: what answers.
        drawing: which questions.
        cells: of the grid; Self-RAG decoding takes those without examples and explanation, others are refused.
        out: the run directory.
        retry_failed: ask again what failed before.

    Returns:
        Name of the cell to items, failed, seconds and cached tokens.

    Raises:
        UserError: the file, the model or the directory cannot be used; what was recorded is kept.
    """
    if generator.reflective and (unfit := next((cell for cell in cells if not fits(cell)), None)):
        raise UserError(f"{unfit.name}: Self-RAG decoding has no prompt; give --prompt basic --examples 0")
    questions, data = draw(drawing, passages=max(cell.cutoff for cell in cells))
    identity = {
        "name": generator.name,
        "generator": generator.identity(),
        "questions": questions.identity(),
        "data": data,
    }
    job = Job(questions, drawing.file.path, generator.template, {"data": data})
    total = len(cells) * len(questions.chosen.items)
    with _progress("interpret", total) as progress, on_demand(generator.load) as writer:
        stream = Stream(RunDirectory(out, identity), retry_failed, progress, generator.batch)
        return run_cells(job, cells, stream, writer)


def run_tests(run: Path, generator: Generator, patterns: Sequence[str] = (), *, retry_failed: bool = False) -> Results:
    """Put the replies of a run to their counterfactual tests.

    Args:
        run: the run directory.
        generator: model and engine of the run; its prompts are those of the run.
        patterns: names of cells, such as `k5-ranked-*`; none for all.
        retry_failed: ask again what failed before.

    Raises:
        UserError: the generator is another one than that of the run, or as `run_grid`.
    """
    found = read_grid(run)
    cells = found.select(patterns)
    same = _as_run(generator, found)
    identity = {**found.identity, "generator": same.identity()}
    tests = sum(len(tests_of(cell)) for cell in cells)
    with _progress("test", tests * len(found.job.questions.chosen.items)) as progress, on_demand(same.load) as writer:
        stream = Stream(RunDirectory(run, identity), retry_failed, progress, same.batch)
        return put_to_test(found.job, cells, stream, writer)


def run_judges(run: Path, model: str, engine: str | None = None, patterns: Sequence[str] = ()) -> Results:
    """Ask a Self-RAG model's reflection tokens and its citation intrinsic about the replies of a run.

    Args:
        run: the run directory.
        model: a checkpoint with reflection tokens; the intrinsic is its adapter where it brings one, else a prompt.
        engine: as everywhere.
        patterns: names of cells; none for all.

    Raises:
        UserError: the model has no reflection tokens, or as `run_grid`.
    """
    from selfrag.intrinsics.model_library import DEMO
    from selfrag.intrinsics.reflectors.loading import adapters_of
    from selfrag.loading import resolve_model

    found = read_grid(run)
    cells = found.select(patterns)
    path, remote = resolve_model(model), engine is not None and engine.startswith(("http://", "https://"))
    shipped = adapters_of((CITATIONS,), demo=model == DEMO)
    total = len(cells) * len(found.job.questions.chosen.items)
    with _progress("judge", total) as progress, on_demand(partial(_judges, model, engine, remote=remote)) as judges:
        loaded = judges().engine.limits.adapters if remote else shipped  # a server says what it has
        identity = {"model": model_files(path), "citation": "adapter" if CITATIONS in loaded else "prompt"}
        if not remote and CITATIONS in shipped:
            identity["adapter"] = model_files(Path(shipped[CITATIONS]))
        stream = Stream(RunDirectory(run, found.identity), progress=progress)
        return judge_cells(found.job, cells, stream, judges, identity)


def _judges(model: str, engine: str | None, *, remote: bool) -> Judges:
    from selfrag.api import SelfRAG
    from selfrag.intrinsics.reflectors.tokens import TokenReflector
    from selfrag.reflection.labels import ISREL, ISSUP

    options: dict[str, Any] = {"url": engine} if remote else {}
    name = "http" if remote else engine
    rag = SelfRAG.from_pretrained(model, retriever=nothing_searched, engine=name, intrinsics=(CITATIONS,), **options)
    (citation,) = rag.reflectors
    relevance, support = (TokenReflector(rag.prompting, labels) for labels in (ISREL, ISSUP))
    return Judges(rag.engine, relevance, support, citation)


def _as_run(generator: Generator, run: GridRun) -> Generator:
    """The generator with the prompts of the run."""
    made = run.identity["generator"]
    return replace(
        generator, layout=made["layout"], max_tokens=made["max_tokens"], template=Template(**made["template"])
    )


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit="reply", disable=None) as bar:
        yield bar.update
