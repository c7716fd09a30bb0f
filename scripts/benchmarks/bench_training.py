"""Measure training speed on this machine: ours against plain `Trainer` and TRL, same rows, settings and losses.

    python scripts/benchmarks/bench_training.py ROWS.jsonl --base BASE [--out REPORT.json]

`--systems plain,trl,ours,ours-trainer` says which are measured, in which order. The table goes to the standard output.
Leave the machine alone while it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from scripts.benchmarks.speed.training import SYSTEMS, Contest, measure, table
from scripts.command import command
from selfrag.common.provenance import commit, machine
from selfrag.training.recipes import read_recipe


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("rows", type=Path, help="training rows")
    parser.add_argument("--base", type=Path, required=True, help="directory of the base checkpoint")
    parser.add_argument("--recipe", default="cpu", help="method, rates and lengths; default %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="rows a step; default %(default)s")
    parser.add_argument(
        "--at-once", type=int, help="rows of like length that plain and trl compute at once; a part of --batch"
    )
    parser.add_argument("--steps", type=int, default=12, help="steps of each system; default %(default)s")
    parser.add_argument("--warm", type=int, default=2, help="first steps that are not timed; default %(default)s")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="in this order; default %(default)s")
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    given = parser.parse_args()
    if not 0 <= given.warm < given.steps:
        parser.error(f"--warm {given.warm}: give fewer than --steps")
    if given.at_once is not None and (given.at_once < 1 or given.batch % given.at_once):
        parser.error(f"--at-once {given.at_once}: give a number that divides --batch")
    config = read_recipe(given.recipe).config
    contest = Contest(given.rows, given.base, given.batch, given.steps, given.warm, config, given.at_once)
    results = []
    for system in given.systems.split(","):
        results.append(measure(system, contest))
        print(f"{system}: {results[-1].speed:.0f} tokens/s", file=sys.stderr, flush=True)
    print(table(results))
    if given.out:
        report = {"machine": machine(), "commit": commit(), "results": [asdict(one) for one in results]}
        names = ("batch", "at_once", "steps", "recipe")
        report["settings"] = {name: getattr(given, name) for name in names}
        given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
