"""Time of the five intrinsics on one long conversation: activated LoRA over the base model's keys, and plain LoRA.

    python scripts/bench_alora.py [--base DIR] [--tokens 2000] [--repeats 5] [--out REPORT.json]

Adapters of the wanted rank are made on the spot and begin as no change, so both kinds write the same and only the work
differs. Wants a quiet machine. A table goes to the standard output, progress to the error stream.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from command import command, progress
from selfrag.common.atomic import write_json
from selfrag.common.provenance import commit, machine
from selfrag.demo.assets import CORPUS
from selfrag.demo.download import fetch, passages
from selfrag.loading import resolve_model
from speed.alora import GOAL, Sizes, race, table


@command
def main() -> int:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    default = Sizes()
    parser.add_argument("--base", default="demo", help="checkpoint directory, hub name or `demo`")
    parser.add_argument("--tokens", type=int, default=default.tokens, help="of the conversation with its passages")
    parser.add_argument("--rank", type=int, default=default.rank, help="of the adapters")
    parser.add_argument("--repeats", type=int, default=default.repeats, help="conversations")
    parser.add_argument("--max-tokens", type=int, default=default.max_tokens, help="most new tokens of a rewrite")
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    given = parser.parse_args()
    sizes = Sizes(given.tokens, given.rank, given.repeats, given.max_tokens)
    say = progress()

    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"load average {load:.1f}: other work is running, so the figures will be worth little")
    with tempfile.TemporaryDirectory() as folder:
        corpus = list(passages(fetch(CORPUS) / next(iter(CORPUS.files))))
        report = race(resolve_model(given.base), corpus, sizes, Path(folder), say)
    print(table(report))
    print(f"\nactivated / plain: {report.ratio:.2f} (goal: at most {GOAL})")
    if given.out:
        write_json(given.out, {**report.as_dict(), "load": load, "machine": machine(), "commit": commit()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
