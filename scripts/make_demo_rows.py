"""Make the demo model's training rows: `make_demo_rows.py --data DATA --out runs/demo/rows.jsonl`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from retrieval.errors import UserError
from selfrag.training.demo.mixture import Mixture, make


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, corpus/ and intrinsics/")
    parser.add_argument("--out", type=Path, required=True, help="rows; heldout.jsonl and manifest.json go beside it")
    parser.add_argument("--seed", type=int, default=Mixture().seed)
    arguments = parser.parse_args()
    try:
        manifest = make(arguments.data, arguments.out, Mixture(seed=arguments.seed))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({name: manifest[name] for name in ("train", "heldout")}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
