"""Runs systems over files: every item once, streamed to disk and scored, here or on a Ray cluster."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from retrieval.index import MODES
from retrieval.passage import Passage, Retriever
from selfrag.cluster import Actors, connect, on_actors, require_ray
from selfrag.common.atomic import locked_directory
from selfrag.common.checks import check_filename
from selfrag.common.errors import UserError, require
from selfrag.common.finished import MANIFEST
from selfrag.common.progress import Progress
from selfrag.common.provenance import model_files, sha256
from selfrag.engines.base import Engine, NoEngine
from selfrag.evaluation.items import Item, Output, output_of
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.paraphrases import paraphrased
from selfrag.evaluation.presets import Given
from selfrag.evaluation.records import RecordFile, RunDirectory, Spent
from selfrag.evaluation.settings import SourceSettings
from selfrag.evaluation.systems import (
    Prompted,
    System,
    endpoint_system,
    named_system,
    system_of_task,
)
from selfrag.evaluation.task import Task
from selfrag.evaluation.task_files import TaskFile, read_tasks, searched
from selfrag.intrinsics.named import chat_model
from selfrag.judges.endpoint import EndpointExecutor
from selfrag.judges.wire import Executor
from selfrag.loading import (
    check_index,
    index_directory,
    is_plugin,
    load_retriever,
    load_tokenizer,
    model_address,
    remote_indexes,
    resolve_model,
    retriever_parts,
)
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive
from selfrag.runtime.sessions import Serving

T = TypeVar("T", bound=Any)


@contextmanager
def on_demand(load: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Give what loads at the first call, and the same thing at every further one; it is closed at the end.

    Args:
        load: called once at the most; what it raises comes out of that call.
    """
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(closing(load())))


MAX_LIVE = 64
"""Questions in flight: a kill loses at most the work on these."""


@dataclass(frozen=True, slots=True)
class Work:
    """Items that one system has to answer."""

    system: System  # how they are answered
    task: Task  # what they are
    items: tuple[Item, ...]  # not answered yet
    traces: bool = False  # keep each answer's whole trace


@dataclass(frozen=True, slots=True)
class Finished:
    """One item of a `Work`, answered or given up."""

    index: int  # of the item in its work
    output: Output | None  # None if it failed
    error: str | None = None  # one line on why it failed, else None
    seconds: float = 0.0  # wall time since the item before, where it was answered; loading a model does not count
    cached_tokens: int = 0  # prompt tokens that were not computed again
    trace: dict[str, Any] | None = None  # plain values, if it was to be kept
    partial: str | None = None  # why the answer ends early or is empty, else None
    # processor time of this process since the item before, all threads together
    processor_seconds: float = 0.0


Execute: TypeAlias = Callable[[Sequence[Work]], Iterator[tuple[int, Finished]]]
"""Answers works and yields each item with the number of its work, in any order, the moment it is done.

Raises `UserError` where nothing can continue, such as a dead engine; what was yielded before is not lost.
"""


class OpenedOnUse:
    """A retriever that is opened at the first search: most systems never search. Picklable if what opens it is."""

    def __init__(self, load: Callable[[], Retriever]) -> None:
        self._load = load
        self._opened: Retriever | None = None

    def __call__(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Search as the retriever does."""
        self._opened = self._opened or self._load()
        return self._opened(queries, k)


def answer_here(
    engine: Callable[[], Serving], retriever: Retriever | None = None
) -> Execute:
    """Return what answers one work after the other on one engine, which is called for only if it is needed.

    Args:
        engine: gives the engine.
        retriever: what systems search that do so by themselves.
    """

    def execute(works: Sequence[Work]) -> Iterator[tuple[int, Finished]]:
        for number, work in enumerate(works):
            for finished in answer(work, engine(), retriever):
                yield number, finished

    return execute


def answer(
    work: Work, serving: Serving, retriever: Retriever | None = None
) -> Iterator[Finished]:
    """Yield the items of one work, as they finish; all live questions share the engine's batches."""
    before, worked_before = time.perf_counter(), time.process_time()
    decoders = (work.system.decoder(item, work.task) for item in work.items)
    for event in drive(decoders, serving, retriever, max_live=MAX_LIVE):
        now = time.perf_counter()
        if isinstance(event, QuestionFailed):
            yield Finished(event.index, None, str(event.error), now - before)
            before = now
        elif isinstance(event, QuestionAnswered):
            written = event.answer
            output = output_of(
                written, cite_all=work.system.cites_all, marked=work.task.marked
            )
            trace = written.trace.as_dict() if work.traces else None
            why = written.partial or written.error
            yield Finished(
                event.index,
                output,
                None,
                now - before,
                written.usage.cached_tokens,
                trace,
                why,
                time.process_time() - worked_before,
            )
            before, worked_before = now, time.process_time()


Counted: TypeAlias = dict[str, dict[str, Any]]
"""Name of a file to items, failed, seconds and cached tokens."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """One system over some files."""

    system: System  # how items are answered
    # what decides the records: name, system, model; goes into the manifest
    identity: Mapping[str, Any]
    folder: Path  # of the run
    # how the files were read; goes into the manifest
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False  # run items again that failed before
    traces: bool = False  # keep each answer's whole trace in its record
    # systems of single files by the file's name, where a published task says how it is decoded
    special: Mapping[str, System] = field(default_factory=dict)

    def settings_of(self, file: TaskFile) -> dict[str, Any]:
        """Return what decides the records of a file beside its data and its task."""
        if file.name in self.special:
            return {**self.settings, "system": self.special[file.name].as_dict()}
        return dict(self.settings)


def run(
    job: RunJob,
    files: Sequence[TaskFile],
    engine: Callable[[], Serving],
    label: str = "",
) -> Counted:
    """Run one system on one engine (`run_all`), which is called for only if there is something to run."""
    return run_all([job], files, answer_here(engine), label or job.folder.name)[0]


def run_all(
    jobs: Sequence[RunJob],
    files: Sequence[TaskFile],
    execute: Execute,
    label: str = "items",
) -> list[Counted]:
    """Run all items that are not recorded yet; those of all systems are given to `execute` at once.

    Args:
        jobs: what to run, each with a folder of its own.
        files: what to run them on.
        execute: `answer_here(..)` or `answer_on_ray(..)`.
        label: of the progress bar, whose ETA does not go by what an earlier run did.

    Returns:
        For each job, name of the file to items, failed, seconds and cached tokens.

    Raises:
        UserError: a folder holds another run or is being written, the disk is full, or the engine died; what was
            recorded is kept.
    """
    with ExitStack() as stack:
        open_files: list[_Open] = []
        results: list[Counted] = [{} for _ in jobs]
        for number, job in enumerate(jobs):
            stack.enter_context(locked_directory(job.folder))
            directory = RunDirectory(
                job.folder,
                {**job.identity, "system": job.system.as_dict(), "traces": job.traces},
            )
            for file in files:
                directory.admit(file, job.settings_of(file))
                results[number][
                    file.name
                ] = {}  # in the order of the files, whichever is finished first
                open_files.append(_Open(job, file, directory, results[number]))
                stack.callback(open_files[-1].close)
        done = sum([file.start() for file in open_files])
        waiting = [file for file in open_files if file.pending]
        total = done + sum(len(file.pending) for file in waiting)
        progress = stack.enter_context(Progress(label, "item", total, done))
        for number, finished in (
            execute([file.work for file in waiting]) if waiting else ()
        ):
            waiting[number].record(finished)
            progress.advance()
    return results


class _Open:
    """One file of one run, with what is still to be answered."""

    def __init__(
        self, job: RunJob, file: TaskFile, directory: RunDirectory, results: Counted
    ) -> None:
        self.pending: list[Item] = []
        self._job = job
        self._file = file
        self._directory = directory
        self._results = results
        self._records = RecordFile(job.folder, file.name)
        self._left = 0

    @property
    def work(self) -> Work:
        """Return what is left to do."""
        system = self._job.special.get(self._file.name, self._job.system)
        return Work(system, self._file.task, tuple(self.pending), self._job.traces)

    def close(self) -> None:
        """Free the log."""
        self._records.close()

    def start(self) -> int:
        """Look what is done; the number of items that are."""
        if self._job.retry_failed:
            self._records.reopen()
        done = self._records.done
        self.pending = [item for item in self._file.items if item.id not in done]
        self._left = len(self.pending)
        if not self.pending:
            self._finish()
        return len(self._file.items) - len(self.pending)

    def record(self, finished: Finished) -> None:
        """Write down one item, and the whole file with the last one."""
        item = self.pending[finished.index]
        spent = Spent(
            finished.seconds, finished.cached_tokens, finished.processor_seconds
        )
        self._records.append(record_of(item, self._file.task, finished), spent)
        self._left -= 1
        if self._left == 0:
            self._finish()

    def _finish(self) -> None:
        counts = self._records.finish([item.id for item in self._file.items])
        self._directory.result(self._file.name, counts)
        self._results[self._file.name] = counts


def record_of(item: Item, task: Task, finished: Finished) -> dict[str, Any]:
    """Return the record of an item; one that failed counts as a wrong answer."""
    figures = scores(item, task, finished.output)
    if finished.output is None:
        return {"id": item.id, "error": finished.error, "scores": figures}
    record = {
        "id": item.id,
        **finished.output.as_dict(),
        "error": None,
        "scores": figures,
    }
    if finished.partial is not None:
        record["partial"] = finished.partial
    if finished.trace is not None:
        record["trace"] = finished.trace
    return record


def scores(item: Item, task: Task, output: Output | None) -> dict[str, Part | None]:
    """Return metric to numerator and denominator of this item."""
    return {metric.name: metric.part(item, output) for metric in task.metrics}


ROUNDS = 4
"""Pieces that each worker should get of a file, so that a slow one holds up little; none is above `MAX_LIVE` items."""


def answer_on_ray(
    open_engine: Callable[[], Serving],
    actors: Actors,
    retriever: Retriever | None = None,
) -> Execute:
    """Answer in Ray actors, all works in one pool, so that each actor opens its engine once."""
    require_ray()

    def execute(works: Sequence[Work]) -> Iterator[tuple[int, Finished]]:
        bare = [replace(work, items=()) for work in works]
        open_worker = functools.partial(_answer_pieces, open_engine, bare, retriever)
        yield from on_actors(_pieces(works, actors.workers), open_worker, actors)

    return execute


WorkPiece: TypeAlias = tuple[int, int, tuple[Item, ...]]
"""Number of a work, number of the first item, and the items."""


def _pieces(works: Sequence[Work], workers: int) -> Iterator[WorkPiece]:
    for number, work in enumerate(works):
        size = min(MAX_LIVE, -(-len(work.items) // (workers * ROUNDS)))
        for start in range(0, len(work.items), max(1, size)):
            yield number, start, work.items[start : start + size]


def _answer_pieces(
    open_engine: Callable[[], Serving],
    works: Sequence[Work],
    retriever: Retriever | None,
) -> Callable[[WorkPiece], Iterator[tuple[int, Finished]]]:
    """Return what answers pieces of works in an actor."""
    serving = open_engine()

    def answer_piece(piece: WorkPiece) -> Iterator[tuple[int, Finished]]:
        number, start, items = piece
        work = replace(works[number], items=items)
        for finished in answer(work, serving, retriever):
            yield number, replace(finished, index=start + finished.index)

    return answer_piece


@dataclass(frozen=True, slots=True)
class Source(SourceSettings):
    """What is run on; `files` are in the schema of `eval/dev`, or of published tasks."""

    files: Sequence[Path | Given]

    @classmethod
    def named(cls, files: Sequence[str], **options: Any) -> Source:
        """Return the source of files as commands name them, such as `nq=nq.jsonl`."""
        return cls(list(map(Given.parse, files)), **options)

    def settings(self) -> dict[str, Any]:
        """Return what decides the items, for the manifest."""
        settings: dict[str, Any] = {}
        if self.limit is not None:
            settings |= {"limit": self.limit, "seed": self.seed}
        if self.paraphrases > 1:
            settings["paraphrases"] = self.paraphrases
        if self.index is not None:
            settings["found"] = self.found
            # an address may hold a password
            if is_plugin(self.index) and "//" not in self.index:
                settings["retriever"] = self.index
            else:
                settings["index"] = index_fingerprint(self.index)
        return settings

    def load(self) -> list[TaskFile]:
        """Read the files, and search for items without passages.

        Raises:
            UserError: as `read_tasks`, a package that a metric needs is missing, or the index cannot be used.
        """
        files = read_tasks(
            self.files, limit=self.limit, seed=self.seed, searched=self.searches
        )
        for metric in chain.from_iterable(file.task.metrics for file in files):
            if metric.needs is not None:  # better said before hours of answers
                module, extra = metric.needs
                require(module, extra=extra)
        if self.searches and not all(
            item.passages for file in files for item in file.items
        ):
            files = [
                replace(file, items=searched(file.items, self.open(), self.found))
                for file in files
            ]
        return [
            replace(file, items=paraphrased(file.items, self.paraphrases))
            for file in files
        ]

    def open(self) -> Retriever:
        """Return what searches."""
        retriever = load_retriever(self.index, demo=False)
        if retriever is None:
            raise UserError("nothing to search with: give --index or --retriever")
        return retriever

    @property
    def retriever(self) -> Retriever | None:
        """Return what searches, opened with the first search; None if nothing does."""
        return OpenedOnUse(self.open) if self.searches else None

    @property
    def searches(self) -> bool:
        """Return whether there is something to search with."""
        return self.index is not None


@dataclass(frozen=True, slots=True)
class Model:
    """What answers."""

    model: str  # checkpoint directory, hub name, or `demo`
    # `vllm`, `transformers`, `http://HOST:PORT`, or None for the best one installed
    engine: str | None = None
    # fields of the engine's configuration
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, path: Path) -> Engine:
        """Load the weights, or connect."""
        from selfrag.engines import load_engine

        return load_engine(self.engine, path, **self.options)


def run_systems(
    names: Mapping[str, str],
    model: Model,
    files: Sequence[TaskFile],
    out: Path,
    *,
    source: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    retry_failed: bool = False,
    traces: bool = False,
    actors: Actors | None = None,
    retriever: Retriever | None = None,
) -> dict[str, Counted]:
    """Run systems that share a checkpoint; each gets the directory `out/NAME`.

    Args:
        names: name of the run to the system it is (`selfrag.evaluation.systems.SYSTEMS`).
        model: what answers: a checkpoint, or `MODEL@URL` for a model behind an OpenAI-compatible endpoint, which runs
            `selfrag.evaluation.systems.UNTUNED`.
        files: what to run on.
        out: directory of the run directories.
        source: how the files were read, for the manifest.
        settings: fields to change in every system; they win over what a published task says.
        changes: further fields to change in single runs, by name of the run.
        retry_failed: run items again that failed before.
        traces: keep whole traces in the records.
        actors: where to answer; this process if None. Files, records and figures are the same.
        retriever: what systems search that do so by themselves; None gives them the passages of the items. Picklable
            for a cluster.

    Returns:
        Name of the run to name of the file to items, failed, seconds and cached tokens.

    Raises:
        UserError: unknown system or setting, unusable model, a directory that holds another run.
    """
    if not names:
        raise UserError("no system to run; name at least one")
    for name in names:
        check_filename("name", name)
    make, about, load = _answering(model, live=retriever is not None)
    jobs = []
    for name, kind in names.items():
        changed = {**(settings or {}), **(changes or {}).get(name, {})}
        special = {
            file.name: make(kind, file.task, changed)
            for file in files
            if file.task.preset
        }
        identity = {"name": name, **about}
        jobs.append(
            RunJob(
                make(kind, None, changed),
                identity,
                out / name,
                source or {},
                retry_failed,
                traces,
                special,
            )
        )
    if actors is None:
        counts = _run_here(jobs, load, files, retriever)
    else:
        counts = _run_on_cluster(actors, jobs, model, files, retriever)
    return dict(zip(names, counts, strict=True))


Make: TypeAlias = Callable[[str, Task | None, Mapping[str, Any]], System]
"""A system by its name, as the protocol of a task has it, with fields changed."""


def _answering(
    model: Model, *, live: bool
) -> tuple[Make, dict[str, Any], Callable[[], Any]]:
    """Return how systems of a model are made, what tells the model from others, and what loads its engine."""
    if model_address(model.model) is not None:
        if model.engine is not None or model.options:
            raise UserError(
                f"{model.model} is asked by its endpoint; leave the engine and its settings out"
            )
        executor, _, about = chat_model(model.model)
        identity = {"model": {"name": about["model"]}, "engine": "endpoint"}
        return (
            (
                lambda kind, task, changes: endpoint_system(
                    kind, executor, changes, task, live=live
                )
            ),
            identity,
            functools.partial(_reach, executor),
        )
    path = resolve_model(model.model)
    tokenizer = load_tokenizer(path)

    def make(kind: str, task: Task | None, changes: Mapping[str, Any]) -> System:
        if task is None:
            return named_system(kind, tokenizer, changes, live=live)
        return system_of_task(kind, tokenizer, task, changes, live=live)

    identity = {"model": model_files(path), "engine": engine_kind(model.engine)}
    return make, identity, functools.partial(model.load, path)


def _reach(executor: Executor) -> NoEngine:
    """Ask a server once before the first question.

    Raises:
        EngineError: there is no such server, or it does not know the model.
    """
    if isinstance(executor, EndpointExecutor):
        executor.find_continuation()
    return NoEngine(executor.close)


def _run_here(
    jobs: Sequence[RunJob],
    load: Callable[[], Any],
    files: Sequence[TaskFile],
    retriever: Retriever | None,
) -> list[Counted]:
    """Run one system after the other in this process, on one engine that is loaded when it is needed."""
    with on_demand(load) as engine:
        execute = answer_here(engine, retriever)
        return [run_all([job], files, execute, job.folder.name)[0] for job in jobs]


def _run_on_cluster(
    actors: Actors,
    jobs: Sequence[RunJob],
    model: Model,
    files: Sequence[TaskFile],
    retriever: Retriever | None,
) -> list[Counted]:
    """Run all systems at once on a cluster, so that no actor waits for the end of another system."""
    if any(isinstance(job.system, Prompted) for job in jobs):
        raise UserError("an endpoint is asked from this machine; leave --ray out")
    with connect(actors.address):
        return run_all(
            jobs,
            files,
            answer_on_ray(functools.partial(_open, model), actors, retriever),
        )


def _open(model: Model) -> Engine:
    """Load the checkpoint in an actor, as that machine finds it."""
    return model.load(resolve_model(model.model))


def engine_kind(engine: str | None) -> str:
    """Return the kind of an engine.

    Engines agree within tolerance only, so records of different ones are not mixed; servers may move.
    """
    from selfrag.engines import choose_engine, is_remote

    if engine is None:
        return choose_engine()[0]
    if is_remote(engine):
        return "http"
    return engine


def index_fingerprint(index: str) -> str:
    """Return what tells one index from another: the checksum of its manifest; of a remote one, what it says of itself.

    Of an address or another retriever it is its name, and of joined ones that of all.
    """
    parts = retriever_parts(index)
    if len(parts) > 1 or is_plugin(index):
        stated = json.dumps(
            [part if is_plugin(part) else index_fingerprint(part) for part in parts]
        )
        return hashlib.sha256(stated.encode()).hexdigest()
    remote = remote_indexes(index)
    if remote is not None:
        stated = json.dumps(remote.read_card(index).values, sort_keys=True)
        return hashlib.sha256(stated.encode()).hexdigest()
    mode, colon, name = index.partition(":")
    if colon and mode in MODES:
        return hashlib.sha256(f"{mode}:{index_fingerprint(name)}".encode()).hexdigest()
    check_index(index)
    folder = index_directory(index)
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise UserError(f"{folder} is no index; build one with `selfrag index build`")
    return sha256(manifest)
