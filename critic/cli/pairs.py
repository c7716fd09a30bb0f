"""`critic pairs`: public data sets in, one file of input-output pairs out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from critic.sources import FORMATS, Reading, named
from critic.sources.files import open_dataset
from critic.sources.mixture import Part, Tally, write_mixture
from retrieval.errors import UserError

_HUB = "hf:"
_DEFAULT = Reading()


def pairs(
    parts: Annotated[
        list[str],
        typer.Argument(
            help="FORMAT=FILE or FORMAT:N=FILE, N pairs at most; jsonl, json or parquet, or hf:NAME[:CONFIGURATION]."
            f" Formats: {', '.join(form.name for form in FORMATS)}."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of pairs to write.")],
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    paper_counts: Annotated[
        bool, typer.Option("--paper-counts", help="Draw as many as the paper where no N is given.")
    ] = False,
    split: Annotated[str, typer.Option(help="Of sources that hold several.")] = _DEFAULT.split,
    most_words: Annotated[int, typer.Option(help="Leave out longer instructions and outputs.")] = _DEFAULT.most_words,
    language: Annotated[str | None, typer.Option(help="Leave out pairs in another language, such as 'en'.")] = None,
) -> None:
    """Turn public data sets into pairs, the input of `critic augment`, and say what was left out and why."""
    from tqdm import tqdm

    mixture = [read_part(part, split=split, paper_counts=paper_counts) for part in parts]
    reading = Reading(split=split, most_words=most_words, language=language)
    tallies = write_mixture(
        out,
        mixture,
        seed=seed,
        reading=reading,
        progress=lambda name, rows: iter(tqdm(rows, desc=name, unit=" rows", delay=1, disable=None)),
    )
    for part, tally in zip(mixture, tallies, strict=True):
        typer.echo(_line(part, tally))
    typer.echo(f"{sum(tally.taken for tally in tallies)} pairs in {out}")


def read_part(value: str, *, split: str = "train", paper_counts: bool = False) -> Part:
    """One argument: `FORMAT[:N]=SOURCE`.

    Raises:
        UserError: it is not of that form, the format is unknown, or N is no count.
    """
    left, equals, source = value.partition("=")
    name, colon, count = left.partition(":")
    if not equals or not source:
        raise UserError(f"{value!r}: write FORMAT=FILE, such as asqa=ASQA.json or kilt_nq:5000=nq-train-kilt.jsonl")
    form = named(name)
    if colon and not re.fullmatch("[0-9]{1,10}", count):
        raise UserError(f"{value!r}: {count!r} is no count of pairs")
    wanted = int(count) if colon else (form.paper_rows or None if paper_counts else None)
    if not source.startswith(_HUB):
        return Part(form, Path(source), wanted)
    hub, _, configuration = source.removeprefix(_HUB).partition(":")
    return Part(form, open_dataset(hub, configuration or None, split), wanted)


def _line(part: Part, tally: Tally) -> str:
    skipped = ", ".join(f"{reason} {count}" for reason, count in tally.skipped.most_common())
    return f"{part.form.name}: {tally.taken} of {tally.pairs} pairs" + (f"; left out: {skipped}" if skipped else "")
