"""Compare systems of several models on any files in the schema of eval/dev: one front over `selfrag eval`.

    python scripts/compare_systems.py run --model BASE --system rag-1 --system rag-5 --out RUNS FILE...
    python scripts/compare_systems.py table RUNS/* --against selfrag-adaptive --out RUNS/comparison
    python scripts/compare_systems.py all --base B --finetuned F --sail S --selfrag OURS --out RUNS FILE...

`run` is `selfrag eval run`, `table` is `selfrag eval report` and writes OUT.md and OUT.csv. `all` runs every system
whose model is given, each model in a process of its own, and prints the table; it continues where it was stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from selfrag.cli.main import main as selfrag
from selfrag.evaluation.systems import ROLES

MODELS = ("base", "finetuned", "sail", "selfrag")
REFERENCE = "selfrag-adaptive"
VALUES = ("engine", "limit", "index", "seed")
FLAGS = ("retry-failed", "traces")


def main() -> int:
    """Run the command line."""
    if sys.argv[1:2] == ["run"]:
        return selfrag(["eval", *sys.argv[1:]])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="systems of one model over files: selfrag eval run")
    table = commands.add_parser("table", help="compare runs", allow_abbrev=False)
    table.add_argument("runs", nargs="+", metavar="RUN")
    table.add_argument("--against", help="system that the others are compared with")
    table.add_argument("--only", action="append", default=[], metavar="NAME", help="this file only; repeatable")
    table.add_argument("--seed", type=int, default=0)
    table.add_argument("--out", type=Path, help="write OUT.md and OUT.csv")
    every = commands.add_parser("all", help="all systems, then the table", allow_abbrev=False)
    for model in MODELS:
        systems = ", ".join(name for name, role in ROLES.items() if role == model)
        every.add_argument(f"--{model}", help=f"checkpoint of {systems}")
    every.add_argument("files", nargs="+", metavar="FILE")
    every.add_argument("--out", type=Path, required=True, help="directory of the runs")
    every.add_argument("--against", default=REFERENCE)
    for value in VALUES:
        every.add_argument(f"--{value}", help=f"as in selfrag eval run --{value}")
    for flag in FLAGS:
        every.add_argument(f"--{flag}", action="store_true", help=f"as in selfrag eval run --{flag}")
    arguments = parser.parse_args()
    return _table(arguments) if arguments.command == "table" else _all(arguments)


def _table(arguments: argparse.Namespace) -> int:
    against = [] if arguments.against is None else [f"--against={arguments.against}"]
    only = [f"--only={name}" for name in arguments.only]
    return _report(arguments.runs, [*against, *only, f"--seed={arguments.seed}"], arguments.out)


def _report(runs: list[str], options: list[str], out: Path | None) -> int:
    written = [] if out is None else [f"--out={out}{ending}" for ending in (".md", ".csv")]
    return selfrag(["eval", "report", *runs, *options, *written])


def _all(arguments: argparse.Namespace) -> int:
    given = {model: path for model in MODELS if (path := getattr(arguments, model)) is not None}
    names = [name for name, role in ROLES.items() if role in given]
    if not names:
        print(f"no model given; give at least one of {', '.join(f'--{model}' for model in MODELS)}", file=sys.stderr)
        return 2
    options = [f"--{name}={value}" for name in VALUES if (value := getattr(arguments, name)) is not None]
    options += [f"--{name}" for name in FLAGS if getattr(arguments, name.replace("-", "_"))]
    for model, path in given.items():
        systems = [f"--system={name}" for name in names if ROLES[name] == model]
        # A process a model: the memory of one is free before the next is loaded.
        command = [sys.executable, "-m", "selfrag", "eval", "run", f"--model={path}", *systems, *options]
        words = [f"--out={arguments.out}", "--", *arguments.files]
        done = subprocess.run([*command, *words], check=False)  # noqa: S603 - our own arguments
        if done.returncode:
            return done.returncode
    against = [f"--against={arguments.against}"] if arguments.against in names else []
    return _report([str(arguments.out / name) for name in names], against, arguments.out / "comparison")


if __name__ == "__main__":
    sys.exit(main())
