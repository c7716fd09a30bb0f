"""`selfrag eval metrics`, `judge` and `facts`: the metrics by name, and second models asked about finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfrag.cli.options import DataFolder, quiet
from selfrag.errors import UserError, require
from selfrag.untrusted import printable

if TYPE_CHECKING:
    from selfrag.evaluation.items import Item
    from selfrag.evaluation.judging import Judges


def metrics() -> None:
    """List the metrics, those that need a second model, and the source of each."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from selfrag.evaluation.metrics.registry import JUDGED, PARAMETRIC, known

    table = Table("metric", "what it is", "source", box=None)
    for one in (*known().values(), *PARAMETRIC.values()):
        table.add_row(*(Text(printable(cell)) for cell in (one.name, one.about, one.source)))
    for name, judged in JUDGED.items():
        table.add_row(name, f"{judged.about}; needs {judged.needs}: selfrag eval judge", judged.source)
    Console().print(table)


def judge(
    runs: Annotated[list[Path], typer.Argument(help="run folders of the same files, or a folder of them")],
    by: Annotated[
        str | None,
        typer.Option("--judge", help="judge: true, nli:MODEL, judge:MODEL[@URL], intrinsic:MODEL, critic:DIR"),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="citations (default), claims, facts or mauve; repeatable")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="judge this file only; repeatable")] = None,
    data: DataFolder = None,
    index: Annotated[str | None, typer.Option(help="index of the runs: a folder, or demo")] = None,
    features: Annotated[
        str | None, typer.Option(help="model of MAUVE's features; gpt2-large by default, as in ALCE")
    ] = None,
    knowledge: Annotated[str | None, typer.Option(help="index to check facts against: a folder, or demo")] = None,
    facts: Annotated[
        str, typer.Option(help="what splits an answer into facts: sentences, or a prompted MODEL or MODEL@URL")
    ] = "sentences",
    against: Annotated[str | None, typer.Option(help="run to compare the others with")] = None,
) -> None:
    """Ask a second model about finished runs: are citations and claims entailed, are facts supported?"""
    from selfrag.cli.eval_report import show
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


def facts(
    run: Annotated[Path, typer.Argument(help="run folder")],
    file: Annotated[str, typer.Argument(help="name of a file of the run, whose items have a topic")],
    write: Annotated[Path | None, typer.Option(help="write the tool's input here")] = None,
    read: Annotated[Path | None, typer.Option(help="read its decisions from here: .._factscore_output.json")] = None,
    data: DataFolder = None,
) -> None:
    """Write the input of the official FactScore tool for a run, or read its decisions."""
    from selfrag.cli.eval_report import show
    from selfrag.evaluation.judging import official_input, official_output

    if (write is None) == (read is None):
        raise UserError("give --write FILE.jsonl before the tool is run, or --read FILE_factscore_output.json after it")
    load = _items_loader(data, None)
    if write is not None:
        lines = official_input(run, file, load, write)
        typer.echo(f"{lines} answers; now: python -m factscore.factscorer --input_path {write} --model_name ..")
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
    """Read all that is to be judged once: what is wrong with it is better said before an hour of judging.

    Raises:
        UserError: a run, its data or an index cannot be read, or `against` is none of the runs.
    """
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


def _judges(wanted: Sequence[str], by: str | None, features: str | None, knowledge: str | None, facts: str) -> Judges:
    """Loads what is needed, and refuses what is missing before it does."""
    from selfrag.evaluation.judging import Judges
    from selfrag.evaluation.metrics.entailment import load_entailment
    from selfrag.evaluation.metrics.factscore import load_splitter
    from selfrag.evaluation.runner import index_fingerprint
    from selfrag.loading import load_index

    if by is None and set(wanted) - {"mauve"}:
        raise UserError("who judges? Name it with --judge: true, nli:MODEL, judge:MODEL, intrinsic:MODEL or critic:DIR")
    if "facts" in wanted and knowledge is None:
        raise UserError("facts need a knowledge source; give its index with --knowledge, or demo")
    splitter = load_splitter(facts)
    made = None
    if "mauve" in wanted:
        require("mauve", extra="mauve")
        from selfrag.evaluation.metrics.mauve import ALCE_FEATURES, HiddenStates

        made = HiddenStates.load(features or ALCE_FEATURES)
    return Judges(
        None if by is None else load_entailment(by),
        made,
        splitter,
        None if knowledge is None else load_index(knowledge),
        None if knowledge is None else {"index": index_fingerprint(knowledge)},
    )


def _items_loader(data: Path | None, index: str | None) -> Callable[[Path, str], Mapping[str, Item]]:
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
        return {item.id: item for item in searched(list(items.values()), open_once(index), found)}

    return load
