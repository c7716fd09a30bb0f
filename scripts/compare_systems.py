"""Run systems over evaluation files, and compare their runs; both work on any file in the schema of eval/dev.

    python scripts/compare_systems.py run --model BASE --system rag-1 --system rag-5 --out RUNS FILE...
    python scripts/compare_systems.py run --model OURS --system selfrag-adaptive --out RUNS FILE...
    python scripts/compare_systems.py table RUNS/* --against selfrag-adaptive --out RUNS/comparison
    python scripts/compare_systems.py all --base B --finetuned F --sail S --selfrag OURS --out RUNS FILE...

`run` writes RUNS/SYSTEM and goes on where it was stopped. `all` runs every system whose model is given, each model in a
process of its own, and prints the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from retrieval.errors import UserError
from selfrag.experiments.systems.named import ROLES

MODELS = ("base", "finetuned", "sail", "selfrag")
REFERENCE = "selfrag-adaptive"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="systems of one model over files", allow_abbrev=False)
    run.add_argument("--model", required=True, help="checkpoint directory, hub name, or demo")
    run.add_argument("--system", action="append", required=True, choices=list(ROLES), help="repeatable")
    run.add_argument("--name", help="of the run, where one system is run with other settings; else the system's")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as threshold=0.5")
    _shared(run)
    table = commands.add_parser("table", help="compare runs", allow_abbrev=False)
    table.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    table.add_argument("--against", help="system that the others are compared with")
    table.add_argument("--only", action="append", metavar="NAME", help="compare on this file only; repeatable")
    table.add_argument("--seed", type=int, default=0)
    table.add_argument("--out", type=Path, help="write OUT.md and OUT.csv")
    every = commands.add_parser("all", help="all systems, then the table", allow_abbrev=False)
    for model in MODELS:
        systems = ", ".join(name for name, role in ROLES.items() if role == model)
        every.add_argument(f"--{model}", help=f"checkpoint of {systems}")
    every.add_argument("--against", default=REFERENCE)
    _shared(every)
    arguments = parser.parse_args()
    try:
        return {"run": _run, "table": _table, "all": _all}[arguments.command](arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--engine", help="vllm, transformers or http://HOST:PORT; else the best one here")
    parser.add_argument("--limit", type=int, help="a seeded sample of this many items of each file")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--index", help="directory of an index, or demo, for items that bring no passages")
    parser.add_argument("--retry-failed", action="store_true", help="run items again that failed before")
    parser.add_argument("--traces", action="store_true", help="keep every answer's whole trace")


def _run(arguments: argparse.Namespace) -> int:
    from selfrag.cli.session import quiet
    from selfrag.experiments.runner_models import Model, Source, run_systems
    from selfrag.experiments.systems.named import parse_settings

    if arguments.name and len(arguments.system) > 1:
        raise UserError("--name names one run; give one --system with it")
    quiet()
    source = Source(arguments.files, arguments.limit, arguments.seed, arguments.index)
    found = run_systems(
        {arguments.name or system: system for system in arguments.system},
        Model(arguments.model, arguments.engine),
        source.load(),
        arguments.out,
        source=source.settings(),
        settings=parse_settings(arguments.set),
        retry_failed=arguments.retry_failed,
        traces=arguments.traces,
    )
    for name, files in found.items():
        for file, result in files.items():
            print(f"{name} {file}: {json.dumps(result)}")
    return 0


def _table(arguments: argparse.Namespace) -> int:
    return _show(arguments.runs, arguments.against, arguments.only, arguments.seed, arguments.out)


def _show(runs: list[Path], against: str | None, only: list[str] | None, seed: int, out: Path | None) -> int:
    from rich.console import Console

    from retrieval.atomic import write_text
    from selfrag.experiments.compare import compare
    from selfrag.experiments.compare_render import csv_text, markdown, terminal
    from selfrag.experiments.compare_runs import read_runs

    folders = [folder for folder in runs if folder.is_dir()]
    comparison = compare(read_runs(folders or runs, only), against=against, seed=seed)
    Console().print(terminal(comparison))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out.with_name(f"{out.name}.md"), markdown(comparison))
        write_text(out.with_name(f"{out.name}.csv"), csv_text(comparison))
        print(f"written: {out}.md, {out}.csv")
    return 0


def _all(arguments: argparse.Namespace) -> int:
    given = {model: path for model in MODELS if (path := getattr(arguments, model)) is not None}
    names = [name for name, role in ROLES.items() if role in given]
    if not names:
        raise UserError(f"no model given; give at least one of {', '.join(f'--{model}' for model in MODELS)}")
    options = [f"--out={arguments.out}", f"--seed={arguments.seed}"]
    options += [f"--{name}={value}" for name in ("engine", "limit", "index") if (value := getattr(arguments, name))]
    options += [f"--{name}" for name in ("retry-failed", "traces") if getattr(arguments, name.replace("-", "_"))]
    for model, path in given.items():
        systems = [f"--system={name}" for name in names if ROLES[name] == model]
        # A process a model: the memory of one is free before the next is loaded.
        command = [sys.executable, __file__, "run", f"--model={path}", *systems, *options, "--"]
        done = subprocess.run([*command, *map(str, arguments.files)], check=False)  # noqa: S603 - our own arguments
        if done.returncode:
            return done.returncode
    against = arguments.against if arguments.against in names else None
    return _show([arguments.out / name for name in names], against, None, 0, arguments.out / "comparison")


if __name__ == "__main__":
    sys.exit(main())
