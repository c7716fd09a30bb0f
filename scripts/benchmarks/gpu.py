"""Benchmark a machine with one GPU in minutes: parity with the CPU, questions a second, training.

    python -m scripts.benchmarks.gpu items --out items.jsonl       # where the demo index is
    python -m scripts.benchmarks.gpu run --items items.jsonl --out report

`run` needs no network, and selfrag need not be installed: it takes the packages of its own clone. Each step is a
benchmark of this folder in a process of its own with a time limit, so a step that fails or takes too long stops no
other, and what it has measured so far is kept. OUT/gpu.md is written again after every step. `--tiny` runs every step
on a random model of two layers.

Needs: the demo's base model in the cache of selfrag; torch, transformers, peft, accelerate, safetensors, tokenizers,
numpy and pydantic, and gguf to convert the base model. Uses vLLM where it is installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.benchmarks.measure import table
from scripts.benchmarks.workload import demo_items, read_items
from scripts.command import command
from selfrag.common.atomic import write_text
from selfrag.common.checks import check_choice
from selfrag.common.jsonl import write_jsonl
from selfrag.common.pretrained import best_device
from selfrag.common.untrusted import printable

ROOT = Path(__file__).parents[2]
PASSAGES = 5

TIMED = "--data ITEMS --questions 64 --rivals 3 --repeats 1 --live 1 --live 8 --live 64"
VLLM = f"{TIMED} --engine vllm"
TRANSFORMERS = f"{TIMED} --engine transformers --device DEVICE"
TRAINED = "--data ITEMS --passages 5 --recipe gpu"
STEPS = {
    "random-model": (60, "random_model 7b WORK/7b"),
    "parity": (45, "bench_parity --data ITEMS --device DEVICE"),
    "questions-demo": (70, f"bench_decoding {TRANSFORMERS}"),
    "questions-7b": (
        80,
        f"bench_decoding --model WORK/7b --fixed-tokens 20 {TRANSFORMERS}",
    ),
    "training-demo": (
        40,
        f"bench_training {TRAINED} --batch 32 --steps 10 --precision bf16",
    ),
    "training-7b": (
        95,
        f"bench_training --base WORK/7b {TRAINED} --batch 8 --steps 6 --precision bf16",
    ),
    "vllm-demo": (150, f"bench_decoding {VLLM}"),
    "vllm-7b": (150, f"bench_decoding --model WORK/7b --fixed-tokens 20 {VLLM}"),
}
"""Seconds and words of each step, the most valuable first."""
TINY = {
    "random-model": (300, "random_model tiny WORK/tiny"),
    "parity": (300, "bench_parity --model WORK/tiny --data ITEMS --questions 2"),
    "questions": (
        300,
        "bench_decoding --model WORK/tiny --data ITEMS --questions 2 --rivals 1 --repeats 1 --live 1 --live 8"
        " --fixed-tokens 6 --engine transformers --device DEVICE",
    ),
    "training": (300, f"bench_training --base WORK/tiny {TRAINED} --steps 3"),
}


def write_items(*, out: Path, count: int = 128) -> None:
    """Write questions about the demo corpus with the passages that its index finds for them.

    Args:
        out: JSON Lines to write.
        count: questions.
    """
    write_jsonl(out, map(asdict, demo_items(count, PASSAGES)))
    print(f"{out}: {count} questions with {PASSAGES} passages each")


def run(
    *,
    items: Path,
    out: Path,
    tiny: bool = False,
    step: list[str] | None = None,
    seconds: float = 600,
) -> int:
    """Run the steps and write the report; the exit code is 1 if one of them failed or was stopped.

    Args:
        items: questions with passages, as `items` writes them.
        out: folder for gpu.md, and for the results and the log of each step.
        tiny: a random model of two layers, and few questions.
        step: to run; repeatable, all by default.
        seconds: time limit of all steps.
    """
    steps = TINY if tiny else STEPS
    if not tiny and find_spec("vllm") is None:
        print("vLLM is not installed; its steps are left out", file=sys.stderr)
        steps = {name: steps[name] for name in steps if "vllm" not in name}
    for name in step or ():
        check_choice("--step", name, steps)
    read_items(items, 8, PASSAGES)  # a bad file is told at once
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    results = ""
    # in memory where there is some: large checkpoints are written and read fast there
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="selfrag-gpu-", dir=memory) as work:
        places = {"ITEMS": str(items.resolve()), "DEVICE": best_device(), "WORK": work}
        for name in step or steps:
            limit, text = steps[name]
            words = text.split()
            for place, value in places.items():
                words = [word.replace(place, value) for word in words]
            started = time.monotonic()
            ended = run_step(name, words, out, min(limit, end - started))
            took = time.monotonic() - started
            rows.append({"step": name, "ended": ended, "seconds": round(took)})
            file = out / f"{name}.json"
            if file.exists():
                measured = json.loads(file.read_text(encoding="utf-8"))
                results += f"\n## {name}\n\n{table(measured['lines'])}"
            write_text(out / "gpu.md", f"# Benchmark\n\n{table(rows)}{results}")
    print((out / "gpu.md").read_text(encoding="utf-8"))
    return int(any(row["ended"] != "done" for row in rows))


def run_step(name: str, words: list[str], out: Path, seconds: float) -> str:
    """Run one step in a process of its own, until it ends or its time is over; return how it ended."""
    if seconds <= 0:
        return "no time was left for it"
    file, log = out / f"{name}.json", out / f"{name}.log"
    file.unlink(missing_ok=True)
    program = f"scripts.benchmarks.{words[0]}"
    command_line = [sys.executable, "-m", program, *words[1:]]
    if program.rpartition(".")[2].startswith("bench_"):
        command_line += ["--out", str(file.resolve())]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and a script of ours
            command_line,
            cwd=ROOT,
            stdout=output,
            stderr=output,
            # without a network, a question to a model hub would wait for its time limit
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            start_new_session=True,  # what a step starts ends with it
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code == 0:
        return "done"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = [line.strip() for line in lines if line.strip()][-1:]
    return printable(f"failed with code {code}: {' '.join(last)[-300:]}")


main = command(items=write_items, run=run)

if __name__ == "__main__":
    main()
