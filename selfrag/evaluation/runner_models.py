"""The edge of the runner: files, evidence, checkpoint and engine in, run directories out. Loads the model once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.checks import component
from retrieval.finished import MANIFEST
from retrieval.passage import Retriever
from selfrag.cluster import Actors, connect
from selfrag.engines.base import Engine
from selfrag.errors import UserError, require
from selfrag.evaluation.on_demand import on_demand
from selfrag.evaluation.provenance import sha256
from selfrag.evaluation.runner import Run, run, run_all
from selfrag.evaluation.runner_manifest import model_files
from selfrag.evaluation.systems.named import system, system_of_task, tokenizer_of
from selfrag.evaluation.tasks.choices import Form
from selfrag.evaluation.tasks.evidence import with_evidence
from selfrag.evaluation.tasks.given import Given
from selfrag.evaluation.tasks.reading import TaskFile, read_tasks
from selfrag.loading import resolve_model


@dataclass(frozen=True, slots=True)
class Source:
    """What is run on.

    Attributes:
        files: in the schema of `eval/dev`, or of published tasks.
        limit: a seeded sample of this many items of each file.
        seed: of the sample.
        index: directory of an index, or `demo`, for items that bring no passages; None leaves them without.
        found: passages to search for.
        form: how closed sets are asked whose labels are letters or numbers; each file says it in the manifest.
    """

    files: Sequence[Path | Given]
    limit: int | None = None
    seed: int = 0
    index: str | None = None
    found: int = 10
    form: Form = "letters"

    def settings(self) -> dict[str, Any]:
        """What decides the items, for the manifest."""
        sampled = {} if self.limit is None else {"limit": self.limit, "seed": self.seed}
        searched = {} if self.index is None else {"index": index_fingerprint(self.index), "found": self.found}
        return sampled | searched

    def load(self) -> list[TaskFile]:
        """Read the files, and search for items without passages.

        Raises:
            UserError: as `read_tasks`, a package that a metric needs is missing, or the index cannot be used.
        """
        searched = self.index is not None
        files = read_tasks(self.files, limit=self.limit, seed=self.seed, searched=searched, form=self.form)
        for module, extra in {metric.needs for file in files for metric in file.task.metrics if metric.needs}:
            require(module, extra=extra)  # better said before hours of answers
        if self.index is None or all(item.passages for file in files for item in file.items):
            return files
        retriever = retriever_of(self.index)
        return [with_evidence(file, retriever, self.found) for file in files]


@dataclass(frozen=True, slots=True)
class Model:
    """What answers.

    Attributes:
        model: checkpoint directory, hub name, or `demo`.
        engine: `vllm`, `transformers`, `http://HOST:PORT`, or None for the best one installed.
        options: fields of the engine's configuration.
    """

    model: str
    engine: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, path: Path) -> Engine:
        """Load the weights, or connect."""
        from selfrag.engines.select import load_engine

        if self.engine is not None and self.engine.startswith(("http://", "https://")):
            return load_engine("http", path, url=self.engine, **self.options)
        return load_engine(self.engine, path, **self.options)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a run is answered, if not in this process.

    Attributes:
        address: of a Ray cluster, `local` for one on this machine, `auto` for the one it belongs to.
        actors: how many, and on what.
    """

    address: str
    actors: Actors = Actors()  # noqa: RUF009 - frozen value


def run_systems(
    names: Mapping[str, str],
    model: Model,
    files: Sequence[TaskFile],
    out: Path,
    *,
    source: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    traces: bool = False,
    cluster: Cluster | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Run systems that share a checkpoint; each gets the directory `out/NAME`.

    Args:
        names: name of the run to the system it is (`selfrag.evaluation.systems.named.SYSTEMS`).
        model: what answers.
        files: what to run on.
        out: directory of the run directories.
        source: how the files were read, for the manifest.
        settings: fields to change in every system; they win over what a published task says.
        retry_failed: run items again that failed before.
        traces: keep whole traces in the records.
        cluster: where to answer; this process if None. Files, records and figures are the same.

    Returns:
        Name of the run to name of the file to items, failed, seconds and cached tokens.

    Raises:
        UserError: unknown system or setting, unusable model, a directory that holds another run.
    """
    if not names:
        raise UserError("no system to run; name at least one")
    for name in names:
        component("name", name)
    path = resolve_model(model.model)
    tokenizer = tokenizer_of(path)
    shared = {"model": model_files(path), "engine": engine_kind(model.engine)}
    jobs = [
        Run(
            system(kind, tokenizer, settings),
            {"name": name, **shared},
            out / name,
            source or {},
            retry_failed,
            traces,
            {f.name: system_of_task(kind, tokenizer, f.task, settings) for f in files if f.task.preset},
        )
        for name, kind in names.items()
    ]
    found = _here(jobs, model, path, files) if cluster is None else _on(cluster, jobs, model, files)
    return dict(zip(names, found, strict=True))


Results = list[dict[str, dict[str, Any]]]
"""For each job, name of the file to what was counted."""


def _here(jobs: Sequence[Run], model: Model, path: Path, files: Sequence[TaskFile]) -> Results:
    """One system after the other in this process, on one engine that is loaded when it is needed."""
    from tqdm import tqdm

    total = sum(len(file.items) for file in files)
    results = []
    with on_demand(functools.partial(model.load, path)) as engine:
        for job in jobs:
            with tqdm(total=total, desc=job.folder.name, unit="item", disable=None) as bar:
                results.append(run(job, files, engine, bar.update, functools.partial(skip, bar)))
    return results


def _on(cluster: Cluster, jobs: Sequence[Run], model: Model, files: Sequence[TaskFile]) -> Results:
    """All systems at once on a cluster, so that no actor waits for the end of another system."""
    from tqdm import tqdm

    from selfrag.evaluation.runner_cluster import answer_on_ray

    with ExitStack() as stack:
        stack.enter_context(connect(cluster.address))
        execute = answer_on_ray(functools.partial(_open, model), cluster.actors)
        total = len(jobs) * sum(len(file.items) for file in files)
        bar = stack.enter_context(tqdm(total=total, desc="items", unit="item", disable=None))
        return run_all(jobs, files, execute, bar.update, functools.partial(skip, bar))


def skip(bar: Any, items: int) -> None:
    """Move a progress bar over what an earlier run did, which is not part of the speed that its ETA goes by."""
    if not bar.disable:  # off a terminal it has none of these
        bar.initial += items
        bar.n += items
        bar.last_print_n += items
        bar.refresh()


def _open(model: Model) -> Engine:
    """In an actor: the checkpoint as this machine finds it."""
    return model.load(resolve_model(model.model))


def engine_kind(engine: str | None) -> str:
    """Engines agree within tolerance only, so records of different ones are not mixed; servers may move."""
    if engine is None:
        from selfrag.engines.select import choose_engine

        return choose_engine()[0]
    return "http" if engine.startswith(("http://", "https://")) else engine


def retriever_of(index: str) -> Retriever:
    """The retriever of an index: a folder, or `demo`.

    Raises:
        UserError: the index cannot be used.
    """
    from selfrag.loading import load_retriever

    found = load_retriever(None if index == "demo" else index, demo=index == "demo")
    if found is None:
        raise UserError(f"no index at {index}")
    return found


def index_fingerprint(index: str) -> str:
    """What tells one index from another: the checksum of its manifest."""
    if index == "demo":
        from selfrag.demo import index_path

        folder = index_path()
    else:
        folder = Path(index)
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise UserError(f"{folder} is no index; build one with `selfrag index build`")
    return sha256(manifest)
