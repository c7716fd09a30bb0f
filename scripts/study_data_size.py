"""How much the generator gains from more rows (the paper's figure 5): trains on nested shares of them, evaluates each.

    python scripts/study_data_size.py rows.jsonl --base BASE --out RUNS --limit 250 nq_dev.jsonl.gz fever.jsonl

A share is the first part of one seeded order of the rows, so that each holds the smaller ones. For every share it runs
`selfrag train adapter`, `selfrag train merge` and `selfrag eval run`, each in a process of its own, and at the end
prints `selfrag eval report`, the whole against its parts. Started again, it continues where it was stopped.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from command import command
from selfrag.errors import UserError
from selfrag.training.rows import Row, read_rows, write_rows

SHARES = (25, 50, 100)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="training rows, such as critic augment writes them")
    parser.add_argument("files", nargs="+", metavar="FILE", help="in the schema of eval/dev")
    parser.add_argument("--base", required=True, help="checkpoint that every share starts from")
    parser.add_argument("--out", type=Path, required=True, help="OUT/train/SHARE, OUT/runs/rows-SHARE, OUT/table.md")
    parser.add_argument("--share", type=int, action="append", metavar="PERCENT", help="default: 25, 50, 100")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the rows and of the training")
    parser.add_argument("--max-length", default="1600", help="as in selfrag train adapter")
    parser.add_argument("--limit", help="as in selfrag eval run")
    parser.add_argument("--index", help="as in selfrag eval run")
    arguments = parser.parse_args(argv)
    return _study(arguments, sorted(set(arguments.share or SHARES)))


def _study(arguments: argparse.Namespace, shares: list[int]) -> int:
    if not all(1 <= share <= 100 for share in shares):
        raise UserError(f"--share {shares}: give percents from 1 to 100")
    rows = list(read_rows(arguments.rows))
    runs = arguments.out / "runs"
    given = [f"--{name}={value}" for name in ("limit", "index") if (value := getattr(arguments, name)) is not None]
    for share in shares:
        place = arguments.out / "train" / str(share)
        file, model = place / "rows.jsonl", place / "model"
        write_rows(file, nested(rows, share, arguments.seed))
        settings = [f"--seed={arguments.seed}", f"--max-length={arguments.max_length}"]
        steps = [["train", "adapter", str(file), "--base", arguments.base, "--out", str(place), *settings]]
        if not model.exists():
            steps.append(["train", "merge", str(place / "adapter"), "--base", arguments.base, "--out", str(model)])
        asked = ["--system=selfrag-adaptive", f"--name=rows-{share}", *given]
        steps.append(["eval", "run", f"--model={model}", *asked, f"--out={runs}", "--", *arguments.files])
        for step in steps:
            if code := _selfrag(step):
                return code
    names = [str(runs / f"rows-{share}") for share in shares]
    written = [f"--out={arguments.out / 'table'}{ending}" for ending in (".md", ".csv")]
    return _selfrag(["eval", "report", *names, f"--against=rows-{shares[-1]}", *written])


def nested(rows: Sequence[Row], share: int, seed: int) -> list[Row]:
    """The first `share` percent, rounded up, of the rows in a seeded order."""
    order = random.Random(seed).sample(range(len(rows)), len(rows))  # noqa: S311 - not for secrets
    return [rows[i] for i in order[: -(-len(rows) * share // 100)]]


def _selfrag(words: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "selfrag", *words], check=False).returncode  # noqa: S603 - our own words


if __name__ == "__main__":
    sys.exit(main())
