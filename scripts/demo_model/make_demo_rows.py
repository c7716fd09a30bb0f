"""Make the demo model's training rows.

    python scripts/demo_model/make_demo_rows.py --data DATA --out runs/demo/rows
    python scripts/demo_model/make_dgen.py --data DATA --critic demo --out runs/dgen
    python scripts/demo_model/make_demo_rows.py --data DATA --dgen runs/dgen/rows --out runs/demo/rows

Folders 1 to 3 are annotated rows, and so are 5 and 6. Folder 4, made when D_gen is there, has rows that a critic wrote.
train_demo.py says which stage learns which.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scripts.command import command
from scripts.demo_model.demo_rows import distilled
from scripts.demo_model.demo_rows.mixture import LAST, STAGES, make


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with train/, corpus/ and intrinsics/",
    )
    parser.add_argument(
        "--dgen",
        type=Path,
        help="folder that critic augment wrote (make_dgen.py: OUT/rows)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="rows.jsonl, heldout.jsonl and manifest.json go to OUT/1, OUT/2 ..",
    )
    arguments = parser.parse_args()
    for stage, mixture in (*enumerate(STAGES, 1), *enumerate(LAST, len(STAGES) + 2)):
        manifest = make(arguments.data, arguments.out / str(stage), mixture)
        print(
            json.dumps(
                {
                    "stage": stage,
                    **{name: manifest[name] for name in ("train", "heldout")},
                },
                indent=1,
            )
        )
    if arguments.dgen is not None:
        annotated = arguments.out / str(len(STAGES))
        last = arguments.out / str(len(STAGES) + 1)
        manifest = distilled.make(
            arguments.dgen, annotated, last, distilled.Remembered()
        )
        shown = {name: manifest[name] for name in ("written_by_critic", "train")}
        print(json.dumps({"stage": len(STAGES) + 1, **shown}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
