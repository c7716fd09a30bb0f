"""Train the demo adapters of the intrinsics: one after the other, or only those that are named. Resumes by itself.

    python scripts/demo_model/train_intrinsics.py --data DATA/intrinsics --out runs/intrinsics
    python scripts/demo_model/train_intrinsics.py --data DATA/intrinsics --out runs/intrinsics --only answerability
    python scripts/demo_model/train_intrinsics.py --data DATA/intrinsics --out runs/intrinsics --start ADAPTERS

The same for a model of 7B on a GPU: --base OWNER/MODEL --recipe paper --device cuda. Each adapter is written to
OUT/NAME/adapter; `selfrag eval intrinsics --model BASE --adapters OUT` measures them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.command import command
from selfrag.loading import resolve_model
from selfrag.training.intrinsics.job import ADAPTERS, AdapterJob, base_name, run
from selfrag.training.intrinsics.rows import STEMS
from selfrag.training.recipes import read_recipe


@command
def main() -> int:
    """Read the command line, train, print where the adapters are."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with the rows of the intrinsics",
    )
    parser.add_argument(
        "--base", default="demo", help="demo, directory of a checkpoint, or hub name"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the runs and the adapters"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=tuple(STEMS),
        default=tuple(STEMS),
        help="default: all five",
    )
    parser.add_argument("--recipe", default="demo", help="demo, paper or a TOML file")
    parser.add_argument(
        "--activated",
        action="store_true",
        help="activated LoRA, for the transformers engine",
    )
    parser.add_argument(
        "--seen",
        type=Path,
        help="rows that the base was trained on; uncertainty leaves them out",
    )
    parser.add_argument("--device")
    parser.add_argument(
        "--max-steps", type=int, help="optimiser steps of each adapter at most"
    )
    parser.add_argument(
        "--start", type=Path, help="folder with an adapter of each name to begin with"
    )
    arguments = parser.parse_args()
    base = resolve_model(arguments.base)
    for name in arguments.only:
        options = {
            "--device": {"training.device": arguments.device},
            "--max-steps": {"training.max_steps": arguments.max_steps},
        }
        recipe = read_recipe(arguments.recipe, ADAPTERS, name).changed(options)
        job = AdapterJob(
            intrinsic=name,
            data=arguments.data,
            base=base,
            out=arguments.out / name,
            config=recipe.config,
            selection=recipe.table("rows"),
            activated=arguments.activated,
            recipe=recipe.name,
            seen=arguments.seen,
            base_name=base_name(arguments.base),
            start=arguments.start and arguments.start / name,
        )
        print(run(job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
