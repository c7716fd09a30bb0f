"""`selfrag eval` and `selfrag data`: arguments in, run directories, tables and files out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfrag.cli.fields import Fields, FieldValues
from selfrag.cli.options import (
    DataFolder,
    EngineChoice,
    engine_options,
    quiet,
    show_markdown,
)
from selfrag.cli.ray_options import RayOptions, ray_actors
from selfrag.cli.results import CommandResult
from selfrag.cli.running import (
    Commands,
    Replaced,
    check_free,
    refuse_options,
    with_entry_points,
)
from selfrag.common.checks import check_filename
from selfrag.common.errors import UserError, count_of, require
from selfrag.common.untrusted import printable
from selfrag.evaluation.settings import SourceSettings

if TYPE_CHECKING:
    from selfrag.evaluation.items import Item
    from selfrag.evaluation.judging import Judges

app = Commands(
    name="eval",
    help="Measure a model on held-out data.",
    no_args_is_help=True,
    cls=with_entry_points("selfrag.eval"),
)
DEFAULT = "selfrag"


@app.command()
def run(
    files: list[str],
    *,
    ctx: typer.Context,
    out: Path,
    system: list[str] | None = None,
    model: str = "demo",
    name: str | None = None,
    changes: Annotated[list[str] | None, typer.Option("--set")] = None,
    engine: EngineChoice,
    item_options: Annotated[
        FieldValues,
        Fields(
            SourceSettings,
            "What is asked",
            *("index=--index/--retriever", "found", "limit", "seed", "paraphrases"),
        ),
    ],
    traces: bool = False,
    retry_failed: bool = False,
    against: str | None = None,
    ray: RayOptions,
) -> CommandResult:
    """Answer the items of files with one or more systems of a model, score them, and compare the systems.

    Args:
        files: FILE of your own rows, or TASK=FILE or TASK/PROTOCOL=FILE of a published task
        out: folder of the runs; the same command continues interrupted ones
        traces: keep the trace of every answer

    What answers:
        system: by name, else selfrag; repeatable
        model: demo, a folder with a checkpoint, a name on the hub, or MODEL@URL of an OpenAI-compatible endpoint, which
            runs base and rag
        name: name of the run, with one system only; by default the system's name
        changes: setting of every system, KEY=VALUE, such as threshold=0.5
    """
    from selfrag.evaluation.systems import decoding_settings, known_systems

    actors = ray_actors(ctx, ray)
    if "index" not in item_options:
        refuse_options(ctx, ("--found",), "for --index or --retriever")
    kinds = list(dict.fromkeys(system or [DEFAULT]))
    known = known_systems()
    for kind in kinds:
        if kind not in known:
            raise UserError(f"--system {kind}: known are {', '.join(known)}")
    if name is not None and len(kinds) > 1:
        raise UserError("--name names one run; give one --system with it")
    if name is not None:
        check_filename("--name", name)
    names = {kind if name is None else name: kind for kind in kinds}
    if against is not None and against not in names:
        raise UserError(f"--against {against}: the runs are {', '.join(names)}")

    from selfrag.evaluation.runner import Model as Answering
    from selfrag.evaluation.runner import Source, run_systems

    quiet()
    settings = decoding_settings(changes or [])
    engine_name, engine_settings = engine_options(engine)
    source = Source.named(files, **item_options)
    # a missing index is found before files are read
    source_settings = source.settings()
    results = run_systems(
        names,
        Answering(model, engine_name, engine_settings),
        source.load(),
        out,
        source=source_settings,
        settings=settings,
        retry_failed=retry_failed,
        traces=traces,
        actors=actors,
        retriever=source.retriever,
    )
    folders = [out / name for name in names]
    # A folder may hold files of earlier runs too; the table is of those that were run now.
    only = list(next(iter(results.values())))
    notes = [f"runs: {', '.join(map(str, folders))}"]
    for run_files in results.values():
        if any(counts["failed"] for counts in run_files.values()):
            notes = [
                "the same command with --retry-failed runs failed items again",
                *notes,
            ]
            break
    return comparison_result(folders, only, against, source.seed, notes)


def comparison_result(
    runs: Sequence[Path],
    only: Sequence[str] | None = None,
    against: str | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> CommandResult:
    """Return the comparison of runs, as commands on runs print it at their end; `notes` are for the error stream."""
    from selfrag.evaluation.comparison import compare, read_runs
    from selfrag.evaluation.tables import brief, markdown

    comparison = compare(read_runs(runs, only), against=against, seed=seed)

    def show() -> None:
        show_markdown(markdown(brief(comparison)))
        for note in notes:
            typer.echo(printable(note), err=True)

    value = {"runs": runs, "notes": notes, "comparison": comparison}
    return CommandResult(value, show, failures=comparison.failures)


@app.command()
def tasks(name: Annotated[str | None, typer.Argument()] = None) -> CommandResult:
    """List the published tasks and what their files look like, or show one task in full.

    Args:
        name: show this task in full: wordings, budgets, settings
    """
    from selfrag.evaluation.presets import COLUMNS, in_full, preset, rows

    if name is None:
        return _names(COLUMNS, rows(), shown=len(COLUMNS) - 1)
    task = preset(name)
    value = {
        "task": task.name,
        "title": task.title,
        "fields": task.schema.fields,
        "metrics": task.metrics,
        "judged": task.judged,
        "published": task.published,
        "protocols": task.protocols,
    }
    return CommandResult(value, in_full(task))


@app.command()
def systems() -> CommandResult:
    """List the systems of `selfrag eval run --system`."""
    from selfrag.evaluation.systems import known_systems

    return _names(("system", "what it is"), known_systems().items())


def _names(
    header: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    shown: int | None = None,
) -> CommandResult:
    """Return what can be named, a row each; people are shown the first `shown` columns."""
    from rich.console import Console

    from selfrag.render.tables import name_table

    cells = list(rows)
    listed = [dict(zip(header, row, strict=True)) for row in cells]
    table = name_table(header[:shown], [row[:shown] for row in cells])
    return CommandResult(listed, lambda: Console().print(table))


@app.command()
def report(
    runs: list[Path],
    *,
    ctx: typer.Context,
    out: Annotated[list[Path] | None, Replaced()] = None,
    against: str | None = None,
    only: list[str] | None = None,
    items: Annotated[int, typer.Option(min=0)] = 50,
    data: DataFolder = None,
    seeds: bool = False,
    seed: int = 0,
) -> CommandResult:
    """Compare finished runs of the same items: figures with intervals, paired differences, costs, every answer.

    Args:
        runs: run folders, or a folder of them
        out: file to write, by its ending: .html a page with every answer's trace, .md or .csv the tables, .png, .svg or
            .pdf the plots; repeatable
        against: system to compare the others with, paired
        only: compare on this file only; repeatable
        items: items of each file on the page, failed ones first
        seeds: the runs are of one system, trained with several seeds: add their mean, with its interval over items, and
            over seeds and items
        seed: seed of the intervals and of the sample of items
    """
    from selfrag.evaluation.comparison import run_folders
    from selfrag.evaluation.report import check_ending, read_report, write_report
    from selfrag.evaluation.tables import brief, markdown

    files = [check_ending(file) for file in out or ()]
    if not any(file.suffix == ".html" for file in files):
        refuse_options(ctx, ("--items", "--data"), "for --out FILE.html")
        items = 0
    report_of_runs = read_report(
        run_folders(runs),
        against=against,
        only=only,
        items=items,
        data=data,
        seed=seed,
        seeds=seeds,
    )
    written = [write_report(report_of_runs, file) for file in files]

    def show() -> None:
        show_markdown(markdown(brief(report_of_runs.comparison)))
        for file in written:
            typer.echo(printable(f"written: {file}"))

    return CommandResult(
        {"comparison": report_of_runs.comparison, "files": written}, show
    )


@app.command()
def judge(
    runs: list[Path],
    *,
    ctx: typer.Context,
    by: Annotated[str | None, typer.Option("--load-judge")] = None,
    metric: list[str] | None = None,
    only: list[str] | None = None,
    data: DataFolder = None,
    index: str | None = None,
    features: str | None = None,
    knowledge: str | None = None,
    facts: str = "sentences",
    against: str | None = None,
) -> CommandResult:
    """Ask a second model about finished runs: are citations and claims entailed, are facts supported?

    Args:
        runs: run folders of the same files, or a folder of them
        by: judge: true, nli:MODEL, judge:MODEL[@URL], INTRINSIC:MODEL, critic:DIR, MODULE:NAME
        metric: citations (default), claims, facts, judgments or mauve; repeatable
        only: judge this file only; repeatable
        index: index of the runs: a folder, or demo
        features: model of MAUVE's features; gpt2-large by default, as in ALCE
        knowledge: index to check facts against: a folder, or demo
        facts: what splits an answer into facts: sentences, or a prompted MODEL or MODEL@URL
    """
    from selfrag.evaluation.comparison import run_folders
    from selfrag.evaluation.judging import families, judge_run

    quiet()
    metrics = families(metric or ())
    for family, options in _OF_METRICS.items():
        if family not in metrics:
            refuse_options(ctx, options, f"for --metric {family}")
    folders = run_folders(runs)
    _check(folders, only, data, (index, knowledge), against)
    load = _items_loader(data, index)
    judges = _judges(metrics, by, features, knowledge, facts)
    for folder in folders:
        judge_run(folder, load, judges, metrics, only=only)
    return comparison_result(folders, only, against)


_OF_METRICS = {"mauve": ("--features",), "facts": ("--knowledge", "--facts")}
"""Options that a metric reads and the others do not."""


@app.command()
def facts(
    ctx: typer.Context,
    run: Path,
    file: str,
    *,
    write: Annotated[Path | None, Replaced()] = None,
    read: Path | None = None,
    data: DataFolder = None,
) -> CommandResult:
    """Write the input of the official FactScore tool for a run, or read its decisions.

    Args:
        run: run folder
        file: name of a file of the run, whose items have a topic
        write: write the tool's input here
        read: read its decisions from here: .._factscore_output.json
    """
    from selfrag.evaluation.judging import (
        OFFICIAL,
        judged_path,
        official_input,
        official_output,
    )

    if (write is None) == (read is None):
        raise UserError(
            "give --write FILE.jsonl before the tool is run, or --read FILE_factscore_output.json after it"
        )
    load = _items_loader(data, None)
    if write is not None:
        lines = official_input(run, file, load, write)
        line = f"{count_of(lines, 'answers')}; now: python -m factscore.factscorer --input_path {write} --model_name .."
        return CommandResult({"answers": lines, "file": write}, line)
    if read is not None:
        check_free(ctx, [judged_path(run, file, OFFICIAL)])
        official_output(run, file, load, read)
    return comparison_result([run], [file])


def _check(
    folders: Sequence[Path],
    only: Sequence[str] | None,
    data: Path | None,
    indexes: Sequence[str | None],
    against: str | None,
) -> None:
    """Read all that is to be judged once: what is wrong with it is better said before an hour of judging."""
    from selfrag.evaluation.comparison import read_runs
    from selfrag.evaluation.records import items_of
    from selfrag.evaluation.runner import index_fingerprint

    runs = read_runs(folders, only)
    names = [run.name for run in runs]
    if against is not None and against not in names:
        raise UserError(f"--against {against}: the runs are {', '.join(names)}")
    for index in indexes:
        if index is not None:
            index_fingerprint(index)
    for run in runs:
        for name in run.files:
            items_of(run.folder, name, data)


def _judges(
    metrics: Sequence[str],
    by: str | None,
    features: str | None,
    knowledge: str | None,
    facts: str,
) -> Judges:
    """Load what the metrics need, and refuse what is missing before that."""
    from selfrag.evaluation.judging import Judges
    from selfrag.evaluation.metrics.factscore import load_splitter
    from selfrag.evaluation.runner import index_fingerprint
    from selfrag.intrinsics.named import open_judge
    from selfrag.loading import open_retriever

    if by is None and set(metrics) - {"mauve"}:
        raise UserError(
            "who judges? Name it with --load-judge: true, nli:MODEL, judge:MODEL, intrinsic:MODEL or critic:DIR"
        )
    if "facts" in metrics and knowledge is None:
        raise UserError(
            "facts need a knowledge source; give its index with --knowledge, or demo"
        )
    judges = Judges(None, None, load_splitter(facts), None, None)
    if "mauve" in metrics:
        require("mauve", extra="mauve")
        from selfrag.evaluation.metrics.mauve import ALCE_FEATURES, HiddenStates

        judges = replace(judges, features=HiddenStates.load(features or ALCE_FEATURES))
    if by is not None:
        judges = replace(judges, judge=open_judge(by))
    if knowledge is not None:
        judges = replace(
            judges,
            knowledge=open_retriever(knowledge),
            source={"index": index_fingerprint(knowledge)},
        )
    return judges


def _items_loader(
    data: Path | None, index: str | None
) -> Callable[[Path, str], Mapping[str, Item]]:
    """Return what reads the items of a file of a run, and searches for those without passages as the run did."""
    from selfrag.evaluation.records import items_of, read_manifest
    from selfrag.evaluation.task_files import searched
    from selfrag.loading import load_index

    open_once = cache(load_index)

    def load(folder: Path, name: str) -> Mapping[str, Item]:
        items = items_of(folder, name, data)
        if index is None:
            return items
        settings = read_manifest(folder)["files"][name]["settings"]
        per_search = int(settings.get("found", 10))
        complete = searched(list(items.values()), open_once(index), per_search)
        return {item.id: item for item in complete}

    return load


@app.command()
def metrics() -> CommandResult:
    """List the metrics, those that need a second model, and the source of each."""
    from selfrag.evaluation.metrics.registry import JUDGED, PARAMETRIC, known

    metrics = [*known().values(), *PARAMETRIC.values()]
    rows = [(metric.name, metric.about, metric.source) for metric in metrics]
    for name, judged in JUDGED.items():
        about = f"{judged.about}; needs {judged.needs}: selfrag eval judge"
        rows.append((name, about, judged.source))
    return _names(("metric", "what it is", "source"), rows)


data_app = Commands(
    name="data",
    help="Make the public development files that figures are measured on.",
    no_args_is_help=True,
)


@data_app.command("list")
def list_sets() -> CommandResult:
    """List the files that can be made, their licences, and where the originals are."""
    from selfrag.evaluation.public_data import public_sets

    sets = public_sets()
    lines = []
    for name, public in sets.items():
        lines.append(f"{name:16} {public.about} ({public.licence})")
        lines += [f"{'':16} {original.url}" for original in public.originals]
    return CommandResult(sets, "\n".join(lines))


@data_app.command("make")
def make_sets(
    names: list[str],
    *,
    ctx: typer.Context,
    out: Annotated[Path, Replaced(())],
    originals: Annotated[Path | None, typer.Option("--from")] = None,
) -> CommandResult:
    """Make files in our schema, equal byte for byte to those that were measured.

    Args:
        names: files to make, of `selfrag data list`
        out: folder for them
        originals: folder with the originals; else they are downloaded
    """
    from selfrag.evaluation.public_data import make

    check_free(ctx, [out / f"{name}.jsonl" for name in names])
    files = [str(make(name, out, originals)) for name in names]
    return CommandResult(files, "\n".join(files))
