"""Cut PopQA to its long tail: the questions about entities with fewer than 100 page views a month (s_pop).

    python -m scripts.reproduction.long_tail popQA.tsv -o popqa_longtail.jsonl

Reads the published TSV, or the rows of the hub as JSONL, and refuses a file whose long tail is not of 1,399 rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl, write_jsonl

LEAST_VIEWS = 100
ROWS = 1_399


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="PopQA, TSV or JSONL")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file of the long tail")
    arguments = parser.parse_args()
    kept = list(long_tail(read(arguments.file)))
    if len(kept) != ROWS:
        raise UserError(
            f"{arguments.file}: {len(kept):,} rows have s_pop < {LEAST_VIEWS}, and the paper's are {ROWS:,}"
        )
    print(f"{arguments.out}: {write_jsonl(arguments.out, kept)} rows")
    return 0


def read(path: Path) -> Iterable[Mapping[str, Any]]:
    """Return the rows of a file.

    Raises:
        UserError: it cannot be read.
    """
    if path.suffix != ".tsv":
        return read_jsonl(path, dict)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, delimiter="\t"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def long_tail(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows whose subject has fewer than 100 page views a month.

    Raises:
        UserError: a row has no number of views.
    """
    for number, row in enumerate(rows, 1):
        try:
            views = float(row["s_pop"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"row {number} has no number under 's_pop'; give PopQA as it was published") from None
        if views < LEAST_VIEWS:
            yield row


if __name__ == "__main__":
    sys.exit(main())
