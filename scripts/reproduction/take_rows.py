"""Take the first N training rows of one seeded order, for Figure 5: each share holds the smaller ones.

    python -m scripts.reproduction.take_rows rows.jsonl 5000 -o rows-5000.jsonl
    python -m scripts.reproduction.take_rows rows.jsonl 5000 --plain -o plain-5000.jsonl

`--plain` keeps the texts alone, without reflection tokens and passages: the rows of Llama2-FT.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.training.rows import TargetText, TrainingRow, read_rows, write_rows


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="training rows, such as critic augment writes them")
    parser.add_argument("count", type=int, help="rows to take")
    parser.add_argument("--plain", action="store_true", help="keep the texts alone")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file of the rows")
    arguments = parser.parse_args()
    rows = take(list(read_rows(arguments.rows)), arguments.count, arguments.seed)
    if arguments.plain:
        rows = [plain(row) for row in rows]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{arguments.out}: {write_rows(arguments.out, rows)} rows")
    return 0


def take(rows: list[TrainingRow], count: int, seed: int = 0) -> list[TrainingRow]:
    """Return the first `count` rows of a seeded order.

    Raises:
        UserError: there are not so many.
    """
    if not 1 <= count <= len(rows):
        raise UserError(f"{count} rows of {len(rows)}: give a number from 1 to {len(rows)}")
    random.Random(seed).shuffle(rows)  # noqa: S311 - a sample, no secret
    return rows[:count]


def plain(row: TrainingRow) -> TrainingRow:
    """Return the row with its text as the only part of the target."""
    texts = [part.text.strip() for part in row.target if isinstance(part, TargetText)]
    return replace(row, target=(TargetText(" ".join(texts)),))


if __name__ == "__main__":
    sys.exit(main())
