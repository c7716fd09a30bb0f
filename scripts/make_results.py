"""Make the results page from runs and from what sweeps, ablations and grids wrote; no figure is typed by hand.

    python scripts/make_results.py RUNS... sweep/sweep.md ablation/ablation.md --into docs/results.md
    python scripts/make_results.py --into docs/results.md

What is given is kept in a folder beside the page (docs/results/), small enough to be committed, and the page is made of
what is kept there. Without runs the page is made anew from what is there already.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from selfrag.errors import UserError
from selfrag.evaluation.reporting.results import REFERENCE, keep, write_page


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="*", metavar="SOURCE", help="runs, directories of runs, .md files")
    parser.add_argument("--into", type=Path, required=True, metavar="PAGE", help="the page; PAGE without .md is kept")
    parser.add_argument("--against", default=REFERENCE, help="system that the others are compared with, if it is there")
    arguments = parser.parse_args()
    try:
        if arguments.into.suffix != ".md":
            raise UserError(f"--into {arguments.into}: give a file that ends in .md")
        folder = arguments.into.with_suffix("")
        for path in keep(arguments.sources, folder):
            print(f"kept: {path}")
        print(f"written: {write_page(folder, arguments.into, against=arguments.against)}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
