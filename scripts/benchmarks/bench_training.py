"""Measure training speed: `bench_training.py [--rows ROWS.jsonl] [--base DIR] [--steps 12]`.

Our trainer and transformers' Trainer with PEFT train the same rows in the same order. Rows are made of the demo corpus
where none are named.
"""

from __future__ import annotations

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
def main(
    *,
    rows: Path | None = None,
    base: str = "demo-base",
    recipe: str = "cpu",
    batch: int = 4,
    steps: int = 12,
) -> None:
    """Print a line for each trainer.

    Args:
        rows: training rows; their number is a multiple of the batch.
        base: base checkpoint.
        recipe: method, adapter and lengths.
        batch: rows of a step.
        steps: optimiser steps.
    """
    say = progress()
    config = replace(read_recipe(recipe).config, precision="fp32")
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        if rows is None:
            rows = Path(scratch) / "rows.jsonl"
            write_rows(rows, rows_from(demo_items(batch * steps, 1)))
        contest = TrainingContest(rows, resolve_model(base), batch, steps, 2, config)
        for system in SYSTEMS:
            say(f"training: {system}")
            lines.append(train(system, contest))
    print(results_table(lines))
    print(f"Machine: {machine()}")


if __name__ == "__main__":
    main()
