"""`critic agree`: labels of several teachers in, agreement out. All figures come from `critic.agreement`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retrieval.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from critic.agreement import Agreement, Labels
    from selfrag.evaluation.intervals import Estimate


def agree(
    teachers: Annotated[
        list[str], typer.Argument(help="Two or more: a labelled file, or the directory of a run; NAME=PATH names it.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write all figures to this JSON file.")] = None,
    seed: Annotated[int, typer.Option(help="Of the intervals.")] = 0,
) -> None:
    """Compare teachers on the cases that they share by id: agreement, Cohen's kappa, confusion, for every group."""
    from rich.console import Console

    from critic.agreement import HUMAN, agreements
    from critic.tables import terminal
    from retrieval.atomic import write_json

    labels = _labels(teachers)
    found = agreements(labels, seed=seed)
    if not any(one.agreement.n for one in found):
        raise UserError("these teachers share no case of any group; label the same file of cases with each of them")
    console = Console()
    header = ("group", "cases", "agreement", "kappa", "weighted kappa", "paper")
    for first, second in dict.fromkeys((one.first, one.second) for one in found):
        compared = [one for one in found if (one.first, one.second) == (first, second)]
        rows = [
            (one.group, one.agreement.n, *map(_interval, (one.agreement, one.kappa, one.weighted)), HUMAN[one.group])
            for one in compared
        ]
        console.print(terminal(f"{first} and {second}, with 95% intervals", header, rows))
        for one in compared:
            console.print(_confusion(one))
    typer.echo("paper: agreement of GPT-4 with the authors, 20 cases a group")
    if out is not None:
        write_json(out, {"seed": seed, "agreements": [one.as_dict() for one in found]})


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value != estimate.value:
        return "-"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _confusion(one: Agreement) -> Table:
    from critic.cases import GROUPS
    from critic.tables import terminal

    names = GROUPS[one.group].names
    title = (
        f"{one.group}: {one.first} (rows, {one.only_first} cases of its own)"
        f" against {one.second} (columns, {one.only_second})"
    )
    return terminal(title, ("", *names), [(name, *row) for name, row in zip(names, one.confusion, strict=True)])


def _labels(arguments: list[str]) -> dict[str, Labels]:
    from critic.agreement import by_group
    from critic.cases import read_labelled

    found: dict[str, Labels] = {}
    for argument in arguments:
        name, equals, place = argument.partition("=")
        path = Path(place) if equals and not Path(argument).exists() else Path(argument)
        if path == Path(argument):
            name = path.name if path.is_dir() else path.name.removesuffix(".gz").removesuffix(".jsonl")
        if name in found:
            raise UserError(f"two teachers are called {name!r}; name them: NAME=PATH")
        files = [path / kind for kind in ("labelled.jsonl", "surplus.jsonl")] if path.is_dir() else [path]
        found[name] = by_group([(row.id, row.case.group, row.label) for file in files for row in read_labelled(file)])
    if len(found) < 2:
        raise UserError("one teacher agrees with itself; give two or more")
    return found
