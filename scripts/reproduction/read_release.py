"""Read the training data that the authors published (selfrag_train_data) as rows of `selfrag train generator`.

    python -m scripts.reproduction.read_release train.jsonl -o rows.jsonl

A published row has `instruction`, `input`, `output` and `dataset_name`; its output is one string with reflection tokens
and passages between `<paragraph>` and `</paragraph>`. Rows that cannot be read are left out and counted.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.reading import filled
from selfrag.reflection.labels import TOKENS
from selfrag.training.rows import TargetEvidence, TargetPart, TargetText, TargetToken, TrainingRow, write_rows

OPEN, CLOSE = "<paragraph>", "</paragraph>"
_PIECE = re.compile(
    f"{OPEN}(?P<passage>.*?){CLOSE}|(?P<token>{'|'.join(re.escape(t) for t in TOKENS if t not in (OPEN, CLOSE))})",
    re.DOTALL,
)


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="published rows, JSONL")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file of the rows")
    arguments = parser.parse_args()
    rows: list[TrainingRow] = []
    left_out: list[str] = []
    for number, record in enumerate(read_jsonl(arguments.file, dict), 1):
        try:
            rows.append(row_of(record, number))
        except UserError as error:
            left_out.append(f"row {number}: {error}")
    if not rows:
        raise UserError(f"{arguments.file} holds no row that can be read; {next(iter(left_out), 'it is empty')}")
    print(f"{arguments.out}: {write_rows(arguments.out, rows)} rows")
    if left_out:
        print(f"left out: {len(left_out)}; {left_out[0]}")
    return 0


def row_of(record: Mapping[str, Any], number: int) -> TrainingRow:
    """Return a published row as ours.

    Raises:
        UserError: a field is missing, or a passage is not closed.
    """
    instruction, given = filled(record, "instruction"), record.get("input") or ""
    if given:  # as the published prompt of training joins them
        instruction = f"{instruction}\n\n### Input:\n{given}"
    source = str(record.get("dataset_name") or "selfrag_train_data")
    return TrainingRow(f"{source}-{number}", source, instruction, tuple(parts_of(filled(record, "output"))))


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
        title, newline, body = piece["passage"].partition("\n")
        title, body = (title, body) if newline else ("", title)
        if not body.strip():
            raise UserError("a passage has no text")
        yield TargetEvidence(Passage("passage", body, title))
    yield from _text(output[position:])


def _text(text: str) -> Iterator[TargetText]:
    if OPEN in text or CLOSE in text:
        raise UserError("a passage is not closed")
    if text:
        yield TargetText(text)


if __name__ == "__main__":
    sys.exit(main())
