"""Make files of the reproduction out of what the authors published, and shares of training rows.

    python -m scripts.reproduction.data long-tail popQA.tsv -o popqa_longtail.jsonl
    python -m scripts.reproduction.data release train.jsonl -o rows.jsonl
    python -m scripts.reproduction.data take rows.jsonl 5000 [--texts-only] -o rows-5000.jsonl

`long-tail` cuts PopQA (TSV, or JSONL of the hub) to the questions about entities with fewer than 100 page views a month
(s_pop), and refuses a file whose long tail is not of 1,399 rows.
`release` reads the authors' training data (selfrag_train_data) as rows of `selfrag train generator`: `instruction`,
`input`, `dataset_name`, and an `output` with reflection tokens and passages between `<paragraph>` and `</paragraph>`.
Rows that cannot be read are left out and counted.
`take` takes the first rows of one seeded order, for Figure 5: each share holds the smaller ones. `--texts-only` keeps
the texts alone, without reflection tokens and passages: the rows of Llama2-FT.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

import typer
from typing_extensions import TypedDict

from retrieval.passage import Passage
from scripts.command import command
from selfrag.common.atomic import check_free
from selfrag.common.errors import UserError, count_of
from selfrag.common.jsonl import read_jsonl, write_jsonl
from selfrag.common.kinds import Filled
from selfrag.common.validation import validate
from selfrag.reflection.labels import TOKENS
from selfrag.training.rows import (
    TargetEvidence,
    TargetPart,
    TargetText,
    TargetToken,
    TrainingRow,
    read_rows,
    write_rows,
)

LEAST_VIEWS = 100
LONG_TAIL_ROWS = 1_399
OPEN, CLOSE = "<paragraph>", "</paragraph>"
_TOKEN = "|".join(re.escape(token) for token in TOKENS if token not in (OPEN, CLOSE))
_PIECE = re.compile(f"{OPEN}(?P<passage>.*?){CLOSE}|(?P<token>{_TOKEN})", re.DOTALL)


class PublishedRow(TypedDict):
    """A row of the authors' training data."""

    instruction: Filled
    output: Filled
    input: NotRequired[str | None]
    dataset_name: NotRequired[str | None]


Out = Annotated[Path, typer.Option("--out", "-o", help="file to write")]
Replace = Annotated[bool, typer.Option("--replace", help="write over a file")]


def cut_long_tail(file: Path, *, out: Out, replace: Replace = False) -> None:
    """Keep PopQA's questions about rare entities."""
    check_free([out], replace)
    _report(out, write_jsonl(out, read_long_tail(file)))


def convert_release(file: Path, *, out: Out, replace: Replace = False) -> None:
    """Read the authors' training data."""
    check_free([out], replace)
    _report(out, write_rows(out, read_release(file)))


def take_rows(
    file: Path,
    count: int,
    *,
    texts_only: bool = False,
    seed: int = 0,
    out: Out,
    replace: Replace = False,
) -> None:
    """Take the first rows of one seeded order.

    Args:
        file: training rows.
        count: rows to take.
        texts_only: keep the texts alone.
        seed: of the order.
        out: file to write.
        replace: write over a file.
    """
    check_free([out], replace)
    rows = take(list(read_rows(file)), count, seed)
    if texts_only:
        rows = [without_reflection(row) for row in rows]
    _report(out, write_rows(out, rows))


def _report(out: Path, count: int) -> None:
    print(f"{out}: {count_of(count, 'rows')}")


def read_long_tail(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows of PopQA's long tail.

    Raises:
        UserError: the file cannot be read, or has another number of such rows than the paper.
    """
    rows: Iterable[Mapping[str, Any]] = ()
    if path.suffix == ".tsv":
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file, delimiter="\t"))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path} cannot be read: {error}") from error
    else:
        rows = read_jsonl(path, dict)
    kept = list(long_tail(rows))
    if len(kept) != LONG_TAIL_ROWS:
        raise UserError(
            f"{path}: {count_of(len(kept), 'rows', 'have', form=',')} s_pop < {LEAST_VIEWS}, and the"
            f" paper's are {LONG_TAIL_ROWS:,}"
        )
    return kept


def long_tail(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows whose subject has fewer than 100 page views a month.

    Raises:
        UserError: a row has no number of views.
    """
    for number, row in enumerate(rows, 1):
        try:
            views = float(row["s_pop"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"row {number} has no number under 's_pop'; give PopQA as it was published"
            ) from None
        if views < LEAST_VIEWS:
            yield row


def read_release(path: Path) -> list[TrainingRow]:
    """Return the published training rows as ours, and say how many are left out.

    Raises:
        UserError: no row can be read.
    """
    rows: list[TrainingRow] = []
    faults: list[str] = []
    for number, record in enumerate(read_jsonl(path, dict), 1):
        try:
            rows.append(row_of(record, number))
        except UserError as error:
            faults.append(f"row {number}: {error}")
    if not rows:
        raise UserError(
            f"{path} holds no row that can be read; {next(iter(faults), 'it is empty')}"
        )
    if faults:
        print(f"left out: {len(faults)}; {faults[0]}")
    return rows


def row_of(record: Mapping[str, Any], number: int) -> TrainingRow:
    """Return a published row as ours.

    Raises:
        UserError: a field is missing, or a passage is not closed.
    """
    row = validate(PublishedRow, record, others="ignore")
    instruction = row["instruction"]
    if row.get("input"):  # as the published prompt of training joins them
        instruction = f"{instruction}\n\n### Input:\n{row['input']}"
    source = row.get("dataset_name") or "selfrag_train_data"
    parts = tuple(parts_of(row["output"]))
    return TrainingRow(f"{source}-{number}", source, instruction, parts)


def parts_of(output: str) -> Iterator[TargetPart]:
    """Yield the tokens, passages and texts of an output in order.

    Raises:
        UserError: a passage is not closed, or has no text.
    """
    output = output.removesuffix("</s>")
    position = 0
    for piece in _PIECE.finditer(output):
        yield from _text(output[position : piece.start()])
        position = piece.end()
        if piece["token"] is not None:
            yield TargetToken(piece["token"])
            continue
        title, newline, text = piece["passage"].partition("\n")
        if not newline:
            title, text = "", title
        if not text.strip():
            raise UserError("a passage has no text")
        yield TargetEvidence(Passage("passage", text, title))
    yield from _text(output[position:])


def _text(text: str) -> Iterator[TargetText]:
    if OPEN in text or CLOSE in text:
        raise UserError("a passage is not closed")
    if text:
        yield TargetText(text)


def take(rows: list[TrainingRow], count: int, seed: int = 0) -> list[TrainingRow]:
    """Return the first `count` rows of a seeded order.

    Raises:
        UserError: there are not so many.
    """
    if not 1 <= count <= len(rows):
        raise UserError(
            f"{count_of(count, 'rows')} of {len(rows)}: give a number from 1 to {len(rows)}"
        )
    random.Random(seed).shuffle(rows)  # noqa: S311 - a sample, no secret
    return rows[:count]


def without_reflection(row: TrainingRow) -> TrainingRow:
    """Return the row with its text as the only part of the target."""
    texts = [part.text.strip() for part in row.target if isinstance(part, TargetText)]
    return replace(row, target=(TargetText(" ".join(texts)),))


main = command(long_tail=cut_long_tail, release=convert_release, take=take_rows)

if __name__ == "__main__":
    main()
