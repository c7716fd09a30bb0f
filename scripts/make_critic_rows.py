"""Add rows from neighbouring annotations to the critic's training rows, for longer runs.

    python scripts/make_critic_rows.py --data DATA --out runs/c/rows.jsonl
    python scripts/train_critic.py --data runs/c/rows.jsonl --out runs/c/1
    python scripts/make_critic_rows.py --data DATA --rows runs/demo/rows/*/rows.jsonl --out runs/c/more.jsonl
    python scripts/train_critic.py --data runs/c/more.jsonl --start runs/c/1/run --out runs/c/2

DATA is the folder with train/, dev/ and intrinsics/; --rows are the rows of scripts/make_demo_rows.py, whose passages
become IsRel rows. Rows that share twelve words with dev/critic.jsonl are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from critic.cases import read_labelled, rows_file
from critic.student.related import checked_claim, fresh, marked_reply, shown_passage
from retrieval.errors import UserError
from selfrag.jsonl import read_jsonl, write_jsonl
from selfrag.training.rows import read_rows


def main() -> int:
    """Read the command line, write the rows, print what was added and what left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, dev/ and intrinsics/")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="training rows of a generator, for IsRel")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    given = parser.parse_args()
    try:
        known = list(read_labelled(rows_file(given.data)))
        held_out = list(read_labelled(given.data / "dev" / "critic.jsonl"))
        claims = [row for row in read_jsonl(given.data / "train" / "pairs.jsonl", checked_claim) if row is not None]
        marked = given.data / "intrinsics" / "hallucination_train.jsonl"
        replies = [row for rows in read_jsonl(marked, lambda record: list(marked_reply(record))) for row in rows]
        shown = [(n, shown_passage(row)) for n, file in enumerate(given.rows, 1) for row in read_rows(file)]
        judged = [replace(row, id=f"{row.id}/{n}") for n, row in shown if row is not None]
        added, dropped = fresh([*claims, *replies, *judged], known, held_out)
        written = write_jsonl(given.out, (row.as_dict() for row in [*known, *added]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{written} rows, {len(added)} of them added; left out: {dict(dropped)}")
    for (dataset, label), count in sorted(Counter((f"{row.dataset}/{row.rule}", row.label) for row in added).items()):
        print(f"  {count:5} {dataset}: {label}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
