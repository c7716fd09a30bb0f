"""`selfrag eval` and `selfrag data`: arguments in, run directories, tables and files out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfrag.cli.engine_options import EngineChoice, engine_options
from selfrag.cli.options import (
    ASKED,
    WHAT,
    DataFolder,
    Files,
    IndexName,
    Limit,
    RetryFailed,
    quiet,
    show_markdown,
)
from selfrag.cli.running import Commands, with_entry_points
from selfrag.common.checks import check_filename
from selfrag.common.errors import UserError, require
from selfrag.common.untrusted import printable, replace_surrogates

if TYPE_CHECKING:
    from selfrag.evaluation.items import Item
    from selfrag.evaluation.judging import Judges

app = Commands(
    name="eval",
    help="Measure a model on held-out data.",
    no_args_is_help=True,
    cls=with_entry_points("selfrag.eval"),
)
WHERE = partial(typer.Option, rich_help_panel="Where it runs")
DEFAULT = "selfrag"
Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]


@app.command()
def run(
    *,
    files: Files,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="folder of the runs; the same command continues interrupted ones",
        ),
    ],
    system: Annotated[
        list[str] | None, WHAT(help=f"by name, else {DEFAULT}; repeatable")
    ] = None,
    model: Annotated[
        str,
        WHAT(
            help="demo, a folder with a checkpoint, a name on the hub, or MODEL@URL of an OpenAI-compatible endpoint, "
            "which runs base and rag"
        ),
    ] = "demo",
    name: Annotated[
        str | None,
        WHAT(
            help="name of the run, with one system only; by default the system's name"
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        WHAT("--set", help="setting of every system, KEY=VALUE, such as threshold=0.5"),
    ] = None,
    engine: EngineChoice,
    index: IndexName = None,
    retriever: Annotated[
        str | None,
        ASKED(
            help="your own retriever in place of an index: an entry point of selfrag.retrievers, or MODULE:NAME"
        ),
    ] = None,
    found: Annotated[int, ASKED(min=1, help="passages per search")] = 10,
    limit: Limit = None,
    seed: Annotated[int, ASKED(help="seed of the sample and of the intervals")] = 0,
    traces: Annotated[
        bool, typer.Option("--traces", help="keep the trace of every answer")
    ] = False,
    retry_failed: RetryFailed = False,
    against: Annotated[
        str | None, typer.Option(help="run to compare the others with")
    ] = None,
    ray: Annotated[
        str | None, WHERE(help="'local', 'auto' or the address of a Ray cluster")
    ] = None,
    workers: Annotated[int, WHERE(min=1, help="number of Ray actors")] = 1,
    gpus: Annotated[float, WHERE(min=0, help="GPUs per Ray actor")] = 0,
) -> None:
    """Answer the items of files with one or more systems of a model, score them, and compare the systems."""
    from selfrag.evaluation.systems import decoding_settings, known_systems

    kinds = list(dict.fromkeys(system or [DEFAULT]))
    known = known_systems()
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UserError(f"--system {unknown[0]}: known are {', '.join(known)}")
    if name is not None and len(kinds) > 1:
        raise UserError("--name names one run; give one --system with it")
    if name is not None:
        check_filename("--name", name)
    names = {kind if name is None else name: kind for kind in kinds}
    if against is not None and against not in names:
        raise UserError(f"--against {against}: the runs are {', '.join(names)}")

    from selfrag.cluster import Actors
    from selfrag.evaluation.presets import Given
    from selfrag.evaluation.runner import Cluster, OpenedOnUse, Source, run_systems
    from selfrag.evaluation.runner import Model as Answering

    quiet()
    settings = decoding_settings(changes or [])
    engine_name, engine_settings = engine_options(engine)
    source = Source(
        [Given.parse(one) for one in files], limit, seed, index, found, retriever
    )
    how = source.settings()  # a missing index is found before files are read
    results = run_systems(
        names,
        Answering(model, engine_name, engine_settings),
        source.load(),
        out,
        source=how,
        settings=settings,
        retry_failed=retry_failed,
        traces=traces,
        cluster=None if ray is None else Cluster(ray, Actors(workers, num_gpus=gpus)),
        retriever=OpenedOnUse(source.open) if source.searches else None,
    )
    _show_runs([out / one for one in names], results, against, seed)


def _show_runs(
    folders: list[Path],
    results: dict[str, dict[str, dict[str, Any]]],
    against: str | None,
    seed: int,
) -> None:
    """Print the table over what was run now; a folder may hold files of earlier runs too."""
    from selfrag.evaluation.records import failures

    show(folders, list(next(iter(results.values()))), against, seed)
    for folder, (name, files) in zip(folders, results.items(), strict=True):
        if said := failures(folder, files):
            line = f"{name}: {said}; they count as wrong; the same command with --retry-failed runs them again"
            sys.stderr.write(printable(line) + "\n")
    sys.stderr.write(printable(f"runs: {', '.join(map(str, folders))}") + "\n")


@app.command()
def tasks(
    name: Annotated[
        str | None,
        typer.Argument(help="show this task in full: wordings, budgets, settings"),
    ] = None,
) -> None:
    """List the published tasks and what their files look like, or show one task in full."""
    from rich.console import Console
    from rich.text import Text

    from selfrag.evaluation.presets import in_full, overview, preset

    if name is None:
        Console().print(overview())
    else:
        Console().print(Text(in_full(preset(name))), soft_wrap=True)


@app.command()
def systems(as_json: Json = False) -> None:
    """List the systems of `selfrag eval run --system`."""
    from selfrag.evaluation.systems import known_systems

    _print_names(("system", "what it is"), known_systems().items(), as_json=as_json)


def _print_names(
    header: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, as_json: bool
) -> None:
    """Print what can be named, a row each; names are never broken, so that they can be copied."""
    if as_json:
        listed = [dict(zip(header, row, strict=True)) for row in rows]
        sys.stdout.write(
            replace_surrogates(json.dumps(listed, ensure_ascii=False)) + "\n"
        )
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for column in header:
        table.add_column(column, no_wrap=column == header[0], overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="run folders, or a folder of them")
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="file to write, by its ending: .html a page with every answer's trace, .md or .csv the tables,"
            " .png, .svg or .pdf the plots; repeatable",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="system to compare the others with, paired")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="compare on this file only; repeatable")
    ] = None,
    items: Annotated[
        int,
        typer.Option(min=0, help="items of each file on the page, failed ones first"),
    ] = 50,
    data: DataFolder = None,
    seed: Annotated[
        int, typer.Option(help="seed of the intervals and of the sample of items")
    ] = 0,
) -> None:
    """Compare finished runs of the same items: figures with intervals, paired differences, costs, every answer."""
    from rich.console import Console

    from selfrag.evaluation.comparison import run_folders
    from selfrag.evaluation.report import check_ending, read_report, write
    from selfrag.evaluation.tables import Terminal

    files = [check_ending(file) for file in out or ()]
    page = any(file.suffix == ".html" for file in files)
    folders, shown = run_folders(runs), items if page else 0
    report_of_runs = read_report(
        folders, against=against, only=only, items=shown, data=data, seed=seed
    )
    console = Console()
    console.print(Terminal(report_of_runs.comparison))
    for file in files:
        sys.stdout.write(printable(f"written: {write(report_of_runs, file)}\n"))


def show(
    runs: Sequence[Path],
    only: Sequence[str] | None = None,
    against: str | None = None,
    seed: int = 0,
) -> None:
    """Print the comparison of runs, as commands on runs do at their end; arguments as `read_runs` and `compare`."""
    from rich.console import Console

    from selfrag.evaluation.comparison import compare, read_runs
    from selfrag.evaluation.tables import Terminal

    Console().print(
        Terminal(compare(read_runs(runs, only), against=against, seed=seed))
    )


@app.command()
def judge(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run folders of the same files, or a folder of them"),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            "--judge",
            help="judge: true, nli:MODEL, judge:MODEL[@URL], INTRINSIC:MODEL, critic:DIR, MODULE:NAME",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="citations (default), claims, facts, judgments or mauve; repeatable"
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="judge this file only; repeatable")
    ] = None,
    data: DataFolder = None,
    index: Annotated[
        str | None, typer.Option(help="index of the runs: a folder, or demo")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="model of MAUVE's features; gpt2-large by default, as in ALCE"
        ),
    ] = None,
    knowledge: Annotated[
        str | None, typer.Option(help="index to check facts against: a folder, or demo")
    ] = None,
    facts: Annotated[
        str,
        typer.Option(
            help="what splits an answer into facts: sentences, or a prompted MODEL or MODEL@URL"
        ),
    ] = "sentences",
    against: Annotated[
        str | None, typer.Option(help="run to compare the others with")
    ] = None,
) -> None:
    """Ask a second model about finished runs: are citations and claims entailed, are facts supported?"""
    from selfrag.evaluation.comparison import run_folders
    from selfrag.evaluation.judging import families, judge_run

    quiet()
    wanted = families(metric or ())
    folders = run_folders(runs)
    _check(folders, only, data, (index, knowledge), against)
    load = _items_loader(data, index)
    judges = _judges(wanted, by, features, knowledge, facts)
    for folder in folders:
        judge_run(folder, load, judges, wanted, only=only)
    show(folders, only, against)


@app.command()
def facts(
    run: Annotated[Path, typer.Argument(help="run folder")],
    file: Annotated[
        str, typer.Argument(help="name of a file of the run, whose items have a topic")
    ],
    write: Annotated[
        Path | None, typer.Option(help="write the tool's input here")
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option(help="read its decisions from here: .._factscore_output.json"),
    ] = None,
    data: DataFolder = None,
) -> None:
    """Write the input of the official FactScore tool for a run, or read its decisions."""
    from selfrag.evaluation.judging import official_input, official_output

    if (write is None) == (read is None):
        raise UserError(
            "give --write FILE.jsonl before the tool is run, or --read FILE_factscore_output.json after it"
        )
    load = _items_loader(data, None)
    if write is not None:
        lines = official_input(run, file, load, write)
        typer.echo(
            f"{lines} answers; now: python -m factscore.factscorer --input_path {write} --model_name .."
        )
    if read is not None:
        official_output(run, file, load, read)
        show([run], [file])


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
    if against is not None and against not in (names := [run.name for run in runs]):
        raise UserError(f"--against {against}: the runs are {', '.join(names)}")
    for index in indexes:
        if index is not None:
            index_fingerprint(index)
    for run in runs:
        for name in run.files:
            items_of(run.folder, name, data)


def _judges(
    wanted: Sequence[str],
    by: str | None,
    features: str | None,
    knowledge: str | None,
    facts: str,
) -> Judges:
    """Loads what is needed, and refuses what is missing before it does."""
    from selfrag.evaluation.judging import Judges
    from selfrag.evaluation.metrics.factscore import load_splitter
    from selfrag.evaluation.runner import index_fingerprint
    from selfrag.intrinsics.named import open_judge
    from selfrag.loading import load_index_or_address

    if by is None and set(wanted) - {"mauve"}:
        raise UserError(
            "who judges? Name it with --judge: true, nli:MODEL, judge:MODEL, intrinsic:MODEL or critic:DIR"
        )
    if "facts" in wanted and knowledge is None:
        raise UserError(
            "facts need a knowledge source; give its index with --knowledge, or demo"
        )
    splitter = load_splitter(facts)
    made = None
    if "mauve" in wanted:
        require("mauve", extra="mauve")
        from selfrag.evaluation.metrics.mauve import ALCE_FEATURES, HiddenStates

        made = HiddenStates.load(features or ALCE_FEATURES)
    return Judges(
        None if by is None else open_judge(by),
        made,
        splitter,
        None if knowledge is None else load_index_or_address(knowledge),
        None if knowledge is None else {"index": index_fingerprint(knowledge)},
    )


def _items_loader(
    data: Path | None, index: str | None
) -> Callable[[Path, str], Mapping[str, Item]]:
    """Reads the items of a file of a run, and searches for those without passages as the run did."""
    from selfrag.evaluation.records import items_of, read_manifest
    from selfrag.evaluation.task_files import searched
    from selfrag.loading import load_index

    open_once = cache(load_index)

    def load(folder: Path, name: str) -> Mapping[str, Item]:
        items = items_of(folder, name, data)
        if index is None:
            return items
        found = int(read_manifest(folder)["files"][name]["settings"].get("found", 10))
        return {
            item.id: item
            for item in searched(list(items.values()), open_once(index), found)
        }

    return load


@app.command()
def metrics(as_json: Json = False) -> None:
    """List the metrics, those that need a second model, and the source of each."""
    from selfrag.evaluation.metrics.registry import JUDGED, PARAMETRIC, known

    rows = [
        (metric.name, metric.about, metric.source)
        for metric in (*known().values(), *PARAMETRIC.values())
    ]
    for name, judged in JUDGED.items():
        rows.append(
            (
                name,
                f"{judged.about}; needs {judged.needs}: selfrag eval judge",
                judged.source,
            )
        )
    _print_names(("metric", "what it is", "source"), rows, as_json=as_json)


@app.command()
def calibration(
    rows: Annotated[
        list[Path],
        typer.Argument(help="training rows that the model was not trained on, JSONL"),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="folder of calibration.json, tables and diagrams"
        ),
    ],
    model: Annotated[
        str, typer.Option(help="demo, a folder with a checkpoint, or a hub name")
    ] = "demo",
    engine: Annotated[
        str | None,
        typer.Option(help="vllm or transformers; by default the best one installed"),
    ] = None,
    biased: Annotated[
        bool,
        typer.Option(
            "--biases", help="fit a bias for each label beside the temperature"
        ),
    ] = False,
    store: Annotated[
        list[Path] | None,
        typer.Option(
            help="checkpoint or adapter that is to bring the result; repeatable"
        ),
    ] = None,
) -> None:
    """Fit temperatures of a model's judgments, with calibration errors before and after, and reliability diagrams."""
    quiet()
    from selfrag.api import SelfRAG
    from selfrag.evaluation import reflection_calibration as calibrating
    from selfrag.evaluation.task_files import nothing_searched
    from selfrag.training.rows import read_rows

    for folder in store or ():  # before the model is asked
        calibrating.settings_file(folder)
    read = [row for path in rows for row in read_rows(path)]
    if not read:
        raise UserError(f"{', '.join(map(str, rows))}: no rows")
    with SelfRAG.from_pretrained(
        model, retriever=nothing_searched, engine=engine
    ) as rag:
        observed = calibrating.observe(read, rag.prompting, rag.engine)
    scalings = calibrating.calibrate(observed, biased=biased)
    calibrating.write(observed, scalings, out)
    show_markdown(calibrating.table(scalings))
    for folder in store or ():
        typer.echo(printable(f"stored: {calibrating.store(scalings, folder)}"))


data_app = Commands(
    name="data",
    help="Make the public development files that figures are measured on.",
    no_args_is_help=True,
)


@data_app.command("list")
def list_sets() -> None:
    """List the files that can be made, their licences, and where the originals are."""
    from selfrag.evaluation.public_data import public_sets

    for name, one in public_sets().items():
        typer.echo(f"{name:16} {one.about} ({one.licence})")
        for original in one.originals:
            typer.echo(f"{'':16} {original.url}")


@data_app.command("make")
def make_sets(
    names: Annotated[
        list[str], typer.Argument(help="files to make, of `selfrag data list`")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for them")],
    *,
    originals: Annotated[
        Path | None,
        typer.Option(
            "--from", help="folder with the originals; else they are downloaded"
        ),
    ] = None,
) -> None:
    """Make files in our schema, equal byte for byte to those that were measured."""
    from selfrag.evaluation.public_data import make

    for name in names:
        typer.echo(f"{make(name, out, originals)}")
