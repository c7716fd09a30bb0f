"""How much the generator gains from more rows (the paper's figure 5): trains on nested shares of them, evaluates each.

    python scripts/study_data_size.py rows.jsonl --base BASE --out RUNS --limit 250 nq_dev.jsonl.gz fever.jsonl
    python scripts/study_data_size.py rows.jsonl --base BASE --out RUNS --rows 5000 --rows 50000 --plain asqa=asqa.json

A share is the first part of one seeded order of the rows, so that each holds the smaller ones. For every share it runs
`selfrag train adapter`, `selfrag train merge` and `selfrag eval run`, each in a process of its own, and at the end
prints `selfrag eval report`, the whole against its parts. `--plain` makes the same steps with the rows' texts alone
(Llama2-FT), and `--judge` adds citation precision. Started again, it continues where it was stopped.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from command import command
from selfrag.common.errors import UserError
from selfrag.training.rows import Row, Text, read_rows, write_rows

SHARES = (25, 50, 100)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="training rows, such as critic augment writes them")
    parser.add_argument("files", nargs="+", metavar="FILE", help="in the schema of eval/dev")
    parser.add_argument("--base", required=True, help="checkpoint that every share starts from")
    parser.add_argument("--out", type=Path, required=True, help="OUT/train/SHARE, OUT/runs/rows-SHARE, OUT/table.md")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--share", type=int, action="append", metavar="PERCENT", help="default: 25, 50, 100")
    sizes.add_argument("--rows", type=int, action="append", metavar="N", dest="counts", help="rows; repeatable")
    parser.add_argument("--plain", action="store_true", help="the curve of models without reflection tokens, too")
    parser.add_argument("--judge", help="of citations, as in selfrag eval judge")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the rows and of the training")
    parser.add_argument("--max-length", default="1600", help="as in selfrag train adapter")
    parser.add_argument("--limit", help="as in selfrag eval run")
    parser.add_argument("--index", help="as in selfrag eval run")
    arguments = parser.parse_args(argv)
    return _study(arguments)


def _study(arguments: argparse.Namespace) -> int:
    sizes = sorted(set(arguments.counts or arguments.share or SHARES))
    if not arguments.counts and not all(1 <= share <= 100 for share in sizes):
        raise UserError(f"--share {sizes}: give percents from 1 to 100")
    rows = list(read_rows(arguments.rows))
    if arguments.counts and not all(1 <= count <= len(rows) for count in sizes):
        raise UserError(f"--rows {sizes}: {arguments.rows} has {len(rows)} rows; give numbers from 1 to that")
    runs = arguments.out / "runs"
    given = [f"--{name}={value}" for name in ("limit", "index") if (value := getattr(arguments, name)) is not None]
    kinds = {"rows": "selfrag-adaptive", "plain": "finetuned-rag"} if arguments.plain else {"rows": "selfrag-adaptive"}
    for kind, size in product(kinds, sizes):
        count = size if arguments.counts else -(-len(rows) * size // 100)
        learned = nested(rows, count, arguments.seed)
        place = arguments.out / "train" / (str(size) if kind == "rows" else f"{kind}-{size}")
        file, model = place / "rows.jsonl", place / "model"
        write_rows(file, learned if kind == "rows" else map(plain, learned))
        settings = [f"--seed={arguments.seed}", f"--max-length={arguments.max_length}"]
        steps = [["train", "adapter", str(file), "--base", arguments.base, "--out", str(place), *settings]]
        if not model.exists():
            steps.append(["train", "merge", str(place / "adapter"), "--base", arguments.base, "--out", str(model)])
        asked = [f"--system={kinds[kind]}", f"--name={kind}-{size}", *given]
        steps.append(["eval", "run", f"--model={model}", *asked, f"--out={runs}", "--", *arguments.files])
        if arguments.judge:
            steps.append(
                ["eval", "judge", str(runs / f"{kind}-{size}"), "--metric=citations", f"--judge={arguments.judge}"]
            )
        for step in steps:
            if code := _selfrag(step):
                return code
    names = [str(runs / f"{kind}-{size}") for kind, size in product(kinds, sizes)]
    written = [f"--out={arguments.out / 'table'}{ending}" for ending in (".md", ".csv")]
    return _selfrag(["eval", "report", *names, f"--against=rows-{sizes[-1]}", *written])


def nested(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """The first `count` of the rows in a seeded order."""
    order = random.Random(seed).sample(range(len(rows)), len(rows))  # noqa: S311 - not for secrets
    return [rows[i] for i in order[:count]]


def plain(row: Row) -> Row:
    """The row without reflection tokens and passages: an instruction and its output."""
    return replace(row, target=(Text("".join(part.text for part in row.target if isinstance(part, Text))),))


def _selfrag(words: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "selfrag", *words], check=False).returncode  # noqa: S603 - our own words


if __name__ == "__main__":
    sys.exit(main())
