"""Benchmark a machine with one GPU in minutes: parity with the CPU, questions a second, training.

    python scripts/benchmarks/gpu.py items --out items.jsonl       # where the demo index is
    split -b 45M MODEL.gguf parts/                                  # the demo's base model, to travel in parts
    python scripts/benchmarks/gpu.py run --items items.jsonl --weights-parts parts --out report

`run` needs no network, and selfrag need not be installed: it takes the packages of its own clone. Each step runs in a
process of its own with a time limit, so a step that fails or takes too long stops no other. OUT/gpu.json and
OUT/gpu.md are written again after every result. `--tiny` runs every step with random models of two layers.

Needs: torch, transformers, peft, accelerate, safetensors, tokenizers, numpy, and gguf to convert the base model. Uses
vLLM where it is installed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.benchmarks.job import LEAST_ITEMS, PASSAGES, Job, Settings, SkipStep
from scripts.benchmarks.report import Step, run_steps
from scripts.benchmarks.steps import STEPS
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.common.untrusted import printable

SECONDS = 420.0
"""Time limit of all steps together."""


def main() -> int:
    """Run the command line; an error of the user is one line."""
    arguments = _parser().parse_args()
    try:
        match arguments.command:
            case "items":
                return write_items(arguments.out, arguments.count)
            case "step":
                return run_one(arguments.name, arguments.work, arguments.seconds)
        return run(arguments)
    except UserError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    items = commands.add_parser(
        "items", help="write questions with passages of the demo index"
    )
    items.add_argument("--out", type=Path, required=True, help="JSON Lines to write")
    items.add_argument(
        "--count", type=int, default=128, help="questions, default %(default)s"
    )
    _add_run(commands.add_parser("run", help="run the steps and write the report"))
    step = commands.add_parser("step", help="run one step; `run` does it")
    step.add_argument("name", choices=[step.name for step in STEPS])
    step.add_argument("--work", type=Path, required=True)
    step.add_argument("--seconds", type=float, required=True)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--items",
        type=Path,
        required=True,
        help="questions with passages, as `items` writes them",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for gpu.json and gpu.md"
    )
    parser.add_argument(
        "--weights-parts",
        type=Path,
        help="folder with the parts of the demo's base model",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        help="rows of the demo's first stage: OUT/1 of make_demo_rows.py",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="torch device, default: CUDA where there is one",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="random models of two layers, few questions"
    )
    parser.add_argument(
        "--steps",
        default="",
        help=f"comma-separated, default: {','.join(s.name for s in STEPS)}",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="limit of all steps, default %(default)s",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="STEP=SECONDS",
        help="another time limit for one step",
    )


def write_items(out: Path, count: int) -> int:
    """Write questions about the demo corpus with the passages that its index finds for them."""
    from scripts.benchmarks.speed.workload import demo_items

    if count < LEAST_ITEMS:
        raise UserError(f"--count {count}: give at least {LEAST_ITEMS}")
    records = []
    for item in demo_items(count, PASSAGES):
        passages = [
            {"id": p.id, "title": p.title, "text": p.text} for p in item.passages
        ]
        records.append({"instruction": item.question, "passages": passages})
    write_jsonl(out, records)
    print(
        f"{out}: {len(records)} questions with {PASSAGES} passages each, {out.stat().st_size / 2**20:.2f} MiB"
    )
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen steps; returns 1 if one of them failed or was stopped."""
    steps = chosen_steps(arguments.steps, arguments.limit)
    with tempfile.TemporaryDirectory(prefix="selfrag-gpu-") as work:
        settings = Settings(
            work=work,
            items=str(arguments.items.resolve()),
            parts=_text(arguments.weights_parts),
            rows=_text(arguments.rows),
            device=arguments.device,
            tiny=arguments.tiny,
        )
        settings.write(Path(work))
        Job(
            settings, Path(work) / "items.jsonl", 0
        ).items()  # a bad file is told at once
        arguments.out.mkdir(parents=True, exist_ok=True)
        try:
            report = run_steps(
                steps, settings, arguments.out, arguments.seconds, Path(__file__)
            )
        finally:
            shutil.rmtree(settings.shared_memory, ignore_errors=True)
    print((arguments.out / "gpu.md").read_text(encoding="utf-8"))
    return int(any(result.status in ("failed", "stopped") for result in report))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def chosen_steps(names: str, limits: Sequence[str]) -> list[Step]:
    """Return the steps of a comma-separated list, all for an empty one, with changed time limits.

    Raises:
        UserError: a step is unknown, or a limit is no number of seconds.
    """
    known = {step.name: step for step in STEPS}
    for limit in limits:
        name, _, text = limit.partition("=")
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if name not in known or not 0 <= seconds < 1e6:
            raise UserError(
                f"--limit {limit!r:.60}: write STEP=SECONDS, such as parity=90; steps: {', '.join(known)}"
            )
        known[name] = replace(known[name], seconds=seconds)
    chosen = names.split(",") if names else list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise UserError(
            f"--steps: unknown {unknown[0]!r:.60}; known: {', '.join(known)}"
        )
    return [step for step in known.values() if step.name in chosen]


def run_one(name: str, work: Path, seconds: float) -> int:
    """Run one step in this process; what it finds and how it ends goes to WORK/NAME.jsonl."""
    job = Job(Settings.read(work), work / f"{name}.jsonl", seconds)
    [step] = [step for step in STEPS if step.name == name]
    module, _, function = step.calls.partition(".")
    try:
        getattr(import_module(f"scripts.benchmarks.{module}"), function)(job)
    except SkipStep as error:
        job.ended("skipped", str(error))
    except Exception as error:
        line = " ".join(str(error).split())
        job.ended("failed", printable(f"{type(error).__name__}: {line}"[:300]))
        traceback.print_exc()
        return 1
    else:
        job.ended("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
