"""Print a model's reflection figures with 95% intervals: `eval_reflection.py --model DIR FILE...`.

FILE is `.jsonl` or `.jsonl.gz` in any schema that `selfrag.evaluation.items` reads; each figure is printed for which
the rows have what it needs. `--where rule=instruction_without_lookup` keeps some rows only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from command import command
from selfrag.common.errors import UserError


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--model", required=True, help="checkpoint directory, hub name, or demo")
    parser.add_argument("--engine", choices=["vllm", "transformers"], help="default: the best one installed")
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="keep these rows only")
    parser.add_argument("--limit", type=int, help="a seeded sample of this many rows of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write figures, values of each item and the manifest as JSON")
    arguments = parser.parse_args()
    from reflection_quality import evaluate

    wheres = dict(_pair(text) for text in arguments.where)
    report = evaluate(
        arguments.model,
        arguments.files,
        engine=arguments.engine,
        where=wheres,
        limit=arguments.limit,
        seed=arguments.seed,
        out=arguments.out,
    )
    for name, figures in report.items():
        print(name)
        for figure, estimate in figures.items():
            print(f"  {figure:26} {estimate}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--where {text}: give KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
