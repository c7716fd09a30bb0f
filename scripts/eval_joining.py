"""Compare the demo model (or any) with and without intrinsics in its beam: accuracy, citation precision, tokens.

    python scripts/eval_joining.py --model demo --out RUNS --limit 60 FILE...
    python scripts/eval_joining.py --model demo --out RUNS --variant tokens --variant hallucination-joins FILE...

FILE is in the schema of eval/dev. Each variant is a run in RUNS/NAME that goes on where it was stopped; the table
compares all of them with `tokens` and is written to RUNS/joining.md and .csv. `--adapter NAME=FOLDER` takes a LoRA
adapter for an intrinsic; the demo model brings its own, what has none is prompted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from retrieval.errors import UserError
from selfrag.experiments.joining import VARIANTS, Joining, run_variants


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--model", default="demo", help="checkpoint directory, hub name, or demo")
    parser.add_argument("--engine", choices=["vllm", "transformers"], help="default: the best one installed")
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="repeatable; default: all")
    parser.add_argument("--adapter", action="append", metavar="NAME=FOLDER", help="of an intrinsic; repeatable")
    parser.add_argument("--limit", type=int, help="a seeded sample of this many items of each file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from retrieval.atomic import write_text
    from selfrag.cli.options import quiet
    from selfrag.evaluation.comparison import compare, read_runs
    from selfrag.evaluation.runner import Source
    from selfrag.evaluation.tables import Terminal, csv_text, markdown

    quiet()
    adapters = None if arguments.adapter is None else dict(_pair(text) for text in arguments.adapter)
    variants = tuple(arguments.variant or VARIANTS)
    joining = Joining(arguments.model, variants, adapters, arguments.engine)
    source = Source(arguments.files, arguments.limit, arguments.seed)
    found = run_variants(joining, source.load(), arguments.out, source.settings())
    for name, files in found.items():
        for file, result in files.items():
            print(f"{name} {file}: {json.dumps(result)}")
    against = "tokens" if "tokens" in variants else None
    comparison = compare(read_runs([arguments.out / name for name in variants]), against=against, seed=arguments.seed)
    Console().print(Terminal(comparison))
    write_text(arguments.out / "joining.md", markdown(comparison))
    write_text(arguments.out / "joining.csv", csv_text(comparison))
    return 0


def _pair(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals:
        raise UserError(f"--adapter {text}: give NAME=FOLDER")
    return name, Path(folder)


if __name__ == "__main__":
    sys.exit(main())
