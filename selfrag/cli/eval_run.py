"""`selfrag eval run`: arguments in, run directories and a table out."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from retrieval.checks import component
from selfrag.cli.options import ASKED, WHAT, Choices, EngineName, Files, IndexName, Limit, RetryFailed, quiet
from selfrag.errors import UserError
from selfrag.untrusted import printable

WHERE = partial(typer.Option, rich_help_panel="Where it runs")
DEFAULT = "selfrag"


def run(
    files: Files,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder of the runs; the same command continues interrupted ones")
    ],
    system: Annotated[list[str] | None, WHAT(help=f"by name, else {DEFAULT}; repeatable")] = None,
    model: Annotated[
        str,
        WHAT(
            help="demo, a folder with a checkpoint, a name on the hub, or MODEL@URL of an OpenAI-compatible endpoint, "
            "which runs base and rag"
        ),
    ] = "demo",
    name: Annotated[
        str | None, WHAT(help="name of the run, with one system only; by default the system's name")
    ] = None,
    changes: Annotated[
        list[str] | None, WHAT("--set", help="setting of every system, KEY=VALUE, such as threshold=0.5")
    ] = None,
    engine: EngineName = None,
    engine_changes: Annotated[
        list[str] | None, WHERE("--engine-set", help="setting of the engine, KEY=VALUE, such as max_model_len=4096")
    ] = None,
    index: IndexName = None,
    retriever: Annotated[
        str | None,
        ASKED(help="your own retriever in place of an index: an entry point of selfrag.retrievers, or MODULE:NAME"),
    ] = None,
    found: Annotated[int, ASKED(min=1, help="passages per search")] = 10,
    limit: Limit = None,
    seed: Annotated[int, ASKED(help="seed of the sample and of the intervals")] = 0,
    choices: Choices = "letters",
    traces: Annotated[bool, typer.Option("--traces", help="keep the trace of every answer")] = False,
    retry_failed: RetryFailed = False,
    against: Annotated[str | None, typer.Option(help="run to compare the others with")] = None,
    ray: Annotated[str | None, WHERE(help="'local', 'auto' or the address of a Ray cluster")] = None,
    workers: Annotated[int, WHERE(min=1, help="number of Ray actors")] = 1,
    gpus: Annotated[float, WHERE(min=0, help="GPUs per Ray actor")] = 0,
) -> None:
    """Answer the items of files with one or more systems of a model, score them, and compare the systems."""
    from selfrag.evaluation.systems import known_systems, parse_settings

    kinds = list(dict.fromkeys(system or [DEFAULT]))
    known = known_systems()
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UserError(f"--system {unknown[0]}: known are {', '.join(known)}")
    if name is not None and len(kinds) > 1:
        raise UserError("--name names one run; give one --system with it")
    if name is not None:
        component("--name", name)
    names = {kind if name is None else name: kind for kind in kinds}
    if against is not None and against not in names:
        raise UserError(f"--against {against}: the runs are {', '.join(names)}")

    from selfrag.cluster import Actors
    from selfrag.evaluation.presets import Given
    from selfrag.evaluation.runner import Cluster, OpenedOnUse, Source, run_systems
    from selfrag.evaluation.runner import Model as Answering

    quiet()
    settings, engine_settings = parse_settings(changes or []), parse_settings(engine_changes or [], "--engine-set")
    source = Source([Given.parse(one) for one in files], limit, seed, index, found, choices, retriever)
    how = source.settings()  # a missing index is found before files are read
    results = run_systems(
        names,
        Answering(model, engine, engine_settings),
        source.load(),
        out,
        source=how,
        settings=settings,
        retry_failed=retry_failed,
        traces=traces,
        cluster=None if ray is None else Cluster(ray, Actors(workers, num_gpus=gpus)),
        retriever=OpenedOnUse(source.open) if source.searches else None,
    )
    _show([out / one for one in names], results, against, seed)


def _show(folders: list[Path], results: dict[str, dict[str, dict[str, Any]]], against: str | None, seed: int) -> None:
    """The table over what was run now; a folder may hold files of earlier runs too."""
    from selfrag.cli.eval_report import show
    from selfrag.evaluation.records import failures

    show(folders, list(next(iter(results.values()))), against, seed)
    for folder, (name, files) in zip(folders, results.items(), strict=True):
        if said := failures(folder, files):
            line = f"{name}: {said}; they count as wrong; the same command with --retry-failed runs them again"
            sys.stderr.write(printable(line) + "\n")
    sys.stderr.write(printable(f"runs: {', '.join(map(str, folders))}") + "\n")
