"""Training: tokens a second and peak memory of ours and of the plain Trainer, and the demo's first stage anew."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from scripts.benchmarks.job import Job, SkipStep
from scripts.benchmarks.models import base_checkpoint, checkpoint_7b
from scripts.benchmarks.random_models import LLAMA_7B
from scripts.benchmarks.speed.training import Contest, Measured, train
from scripts.benchmarks.speed.workload import Item
from scripts.demo_model.train_demo import ANNOTATED
from selfrag.common.errors import UserError
from selfrag.training.recipes import read_recipe
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken, TrainingRow, read_rows, write_rows
from selfrag.training.run import PreparedRows, PrepareRows, fit, layout_for, rows_of
from selfrag.training.settings import Method, Precision, TrainingConfig

_GIB = 2**30

NAMES = {"plain": "plain Trainer, padded rows", "ours-trainer": "ours, packed rows"}


@dataclass(frozen=True, slots=True)
class TrainingSizes:
    """How much is trained."""

    rows_per_step: int
    steps: int
    warm: int  # first steps, which are not timed


DEMO_SIZES = TrainingSizes(32, 10, 3)
SIZES_7B = TrainingSizes(8, 6, 2)
TINY_SIZES = TrainingSizes(4, 3, 1)


def train_demo_size(job: Job) -> None:
    """Measure LoRA and full training at the demo's size, 135 million weights."""
    sizes = TINY_SIZES if job.settings.tiny else DEMO_SIZES
    base, rows = base_checkpoint(job), rows_file(job)
    for method in ("lora", "full"):
        for system in ("ours-trainer", "plain"):
            config = recipe(job, method)
            contest = Contest(rows, base, sizes.rows_per_step, sizes.steps, sizes.warm, config)
            _result(job, "demo", method, train(system, contest))


def train_7b_size(job: Job) -> None:
    """Measure LoRA at the shape of Llama-2 7B, and say whether full training fits."""
    sizes = TINY_SIZES if job.settings.tiny else SIZES_7B
    _say_whether_full_fits(job)
    base, rows = checkpoint_7b(job), rows_file(job)
    for system in ("ours-trainer", "plain"):
        contest = Contest(rows, base, sizes.rows_per_step, sizes.steps, sizes.warm, recipe(job, "lora"))
        _result(job, base.name, "lora", train(system, contest))


def recipe(job: Job, method: Method) -> TrainingConfig:
    """Return the settings of the recipe `gpu`, with the precision of the device."""
    precision: Precision = "bf16" if job.on_gpu else "fp32"
    config = read_recipe("gpu").config
    return replace(config, method=method, precision=precision, epochs=1, max_length=1024, max_passage=512)


def rows_file(job: Job) -> Path:
    """Write training rows that are made of the items, unless they are there; returns the file."""
    path = job.work / "rows.jsonl"
    if not path.exists():
        write_rows(path, rows_from(job.items()))
    return path


def rows_from(items: Sequence[Item]) -> Iterator[TrainingRow]:
    """Yield a row for each passage of each item: the question, the passage, and its first sentence as the answer."""
    for number, item in enumerate(items):
        for place, passage in enumerate(item.passages):
            first = passage.text.partition(". ")[0]
            target = (
                TargetToken("[Retrieval]"),
                TargetEvidence(passage),
                TargetToken("[Relevant]"),
                TargetText(f"{first}."),
                TargetToken("[Fully supported]"),
                TargetToken("[Utility:5]"),
            )
            yield TrainingRow(f"{number}-{place}", "items/passage", item.question, target)


def _result(job: Job, model: str, method: str, measured: Measured) -> None:
    """Write a line of the table."""
    tokens = measured.tokens[measured.warm :]
    job.result(
        **{
            "model": model,
            "method": method,
            "system": NAMES[measured.system],
            "tokens/s": measured.speed,
            "tokens/step": fmean(tokens),
            "timed steps": len(tokens),
            "peak GiB": measured.peak_gib,
            "first loss": measured.losses[0],
            "last loss": measured.losses[-1],
        }
    )


def _say_whether_full_fits(job: Job) -> None:
    """Write lines of the table: what full training of 7B keeps in memory, and whether this card has it."""
    formats = {
        "ours: float32 weights, gradients and AdamW": 4 + 4 + 8,
        "bfloat16 weights, gradients and AdamW": 2 + 2 + 4,
    }
    if job.on_gpu:
        room, place = torch.cuda.get_device_properties(job.device).total_memory / _GIB, "this card"
    else:
        room, place = None, "no GPU here"
    for name, size in formats.items():
        needed = LLAMA_7B.parameters * size / _GIB
        fits = "" if room is None else ("fits" if needed < room else "does not fit")
        job.result(
            **{
                "model": LLAMA_7B.name,
                "method": "full",
                "system": name,
                "needed GiB, without activations": needed,
                f"GiB of {place}": room,
                "verdict": fits,
            }
        )


def retrain_demo(job: Job) -> None:
    """Train the first stage of the demo model as `train_demo.py` does, with its seed, as far as the time goes."""
    if job.settings.rows is None:
        raise SkipStep(
            "no rows of the first stage are here; give --rows FOLDER, as make_demo_rows.py writes it (OUT/1)"
        )
    folder = Path(job.settings.rows)
    rows, held_out = _rows_in(folder, "rows.jsonl"), _rows_in(folder, "heldout.jsonl")
    run = job.work / "stage1"
    done = threading.Event()
    watcher = threading.Thread(target=_follow, args=(job, run / "log.jsonl", done), daemon=True)
    watcher.start()
    steps = 4 if job.settings.tiny else ANNOTATED[0].max_steps
    every = 2 if job.settings.tiny else 50
    config = replace(
        ANNOTATED[0],
        max_steps=steps,
        validate_steps=every,
        checkpoint_steps=10_000,
        device=job.device,
        workers=1,
        precision="bf16" if job.on_gpu else "auto",
    )
    try:
        fit(with_held_out(rows, held_out, config), base_checkpoint(job), run, config)
    finally:
        done.set()
        watcher.join()


def _rows_in(folder: Path, name: str) -> Path:
    """Return a file of rows in a folder, plain or compressed."""
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise UserError(f"no {name} and no {name}.gz in {folder}; make_demo_rows.py writes rows.jsonl and heldout.jsonl")


def with_held_out(rows: Path, held_out: Path, config: TrainingConfig) -> PrepareRows:
    """Return what makes the examples of `rows`, with those of `held_out` for validation."""
    learned = rows_of(rows, config)

    def prepare(tokenizer: Any) -> PreparedRows:
        layout = layout_for(tokenizer, config)
        examples = [layout.example(row) for row in read_rows(held_out)]
        return replace(learned(tokenizer), validation=examples)

    return prepare


def _follow(job: Job, log: Path, done: threading.Event) -> None:
    """Write a line of the table for each validation in the log of a run, while it runs."""
    read = 0
    while True:
        ended = done.wait(1.0)
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        complete = [line for line in lines if line.endswith("\n")]
        for number, line in enumerate(complete[read:], read + 1):
            record = json.loads(line)
            if "validation" in record:
                _validation_result(job, record, [json.loads(text) for text in complete[:number]])
        read = len(complete)
        if ended:
            return


def _validation_result(job: Job, record: dict[str, Any], before: Sequence[dict[str, Any]]) -> None:
    seen = record["validation"]
    seconds = sum(step["seconds"] for step in before)
    groups = {}
    for name in ("retrieve", "isrel", "issup", "isuse", "text"):
        if name in seen["groups"]:
            groups[f"{name} accuracy"] = seen["groups"][name]["accuracy"]
    job.result(
        **{
            "step": record["step"],
            "tokens seen": sum(step["tokens"] for step in before),
            "training seconds": round(seconds, 2),
            "tokens/s": sum(step["tokens"] for step in before) / seconds,
            "training loss": fmean(step["loss"] for step in before[-25:]),
            "held-out loss": seen["loss"],
            **groups,
        }
    )
