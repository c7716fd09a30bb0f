"""Make the demo model's training rows, a folder a stage.

    python scripts/make_demo_rows.py --data DATA --out runs/demo/rows
    python scripts/make_dgen.py --data DATA --critic demo --out runs/dgen
    python scripts/make_demo_rows.py --data DATA --dgen runs/dgen/rows --out runs/demo/rows

The first three stages are annotated rows, and so is the sixth. The fourth, made when D_gen is there, is rows that a
critic wrote. The fifth takes rows of the third.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from command import command
from demo_rows import distilled
from demo_rows.mixture import CHOICES, STAGES, make


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, corpus/ and intrinsics/")
    parser.add_argument("--dgen", type=Path, help="folder that critic augment wrote (make_dgen.py: OUT/rows)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="rows.jsonl, heldout.jsonl and manifest.json go to OUT/1, OUT/2 ..",
    )
    arguments = parser.parse_args()
    for stage, mixture in (*enumerate(STAGES, 1), (len(STAGES) + 3, CHOICES)):
        manifest = make(arguments.data, arguments.out / str(stage), mixture)
        print(json.dumps({"stage": stage, **{name: manifest[name] for name in ("train", "heldout")}}, indent=1))
    if arguments.dgen is not None:
        annotated, last = arguments.out / str(len(STAGES)), arguments.out / str(len(STAGES) + 1)
        manifest = distilled.make(arguments.dgen, annotated, last, distilled.Remembered())
        shown = {name: manifest[name] for name in ("written_by_critic", "train")}
        print(json.dumps({"stage": len(STAGES) + 1, **shown}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
