"""Measure training speed: `bench_training.py [--rows ROWS.jsonl] [--base DIR] [--steps 12]`.

Our trainer and transformers' Trainer with PEFT train the same rows in the same order. Rows are made of the demo corpus
where none are named.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from scripts.benchmarks.report import results_table
from scripts.benchmarks.speed.training import SYSTEMS, TrainingContest, rows_from, train
from scripts.benchmarks.speed.workload import demo_items
from scripts.command import command, progress
from selfrag.common.provenance import machine
from selfrag.loading import resolve_model
from selfrag.training.recipes import read_recipe
from selfrag.training.rows import write_rows


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--rows",
        type=Path,
        help="training rows; their number is a multiple of the batch",
    )
    parser.add_argument(
        "--base", default="demo-base", help="base checkpoint; default %(default)s"
    )
    parser.add_argument(
        "--recipe",
        default="cpu",
        help="method, adapter and lengths; default %(default)s",
    )
    parser.add_argument(
        "--batch", type=int, default=4, help="rows of a step; default %(default)s"
    )
    parser.add_argument("--steps", type=int, default=12, help="default %(default)s")
    arguments = parser.parse_args()
    say = progress()
    config = replace(read_recipe(arguments.recipe).config, precision="fp32")
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        rows = arguments.rows
        if rows is None:
            rows = Path(scratch) / "rows.jsonl"
            write_rows(
                rows, rows_from(demo_items(arguments.batch * arguments.steps, 1))
            )
        base = resolve_model(arguments.base)
        contest = TrainingContest(
            rows, base, arguments.batch, arguments.steps, 2, config
        )
        for system in SYSTEMS:
            say(f"training: {system}")
            lines.append(train(system, contest))
    print(results_table(lines))
    print(f"Machine: {machine()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
