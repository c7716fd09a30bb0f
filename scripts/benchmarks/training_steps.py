"""Training: tokens a second and peak memory of ours and of the plain Trainer, and the demo's first stage anew."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.benchmarks.job import Job, SkipStep
from scripts.benchmarks.models import base_checkpoint, checkpoint_7b
from scripts.benchmarks.speed.training import SYSTEMS, TrainingContest, rows_from, train
from scripts.demo_model.train_demo import ANNOTATED
from selfrag.common.errors import UserError
from selfrag.training.recipes import read_recipe
from selfrag.training.rows import read_rows, write_rows
from selfrag.training.run import PreparedRows, PrepareRows, fit, layout_for, rows_of
from selfrag.training.settings import Method, TrainingConfig

METHODS: tuple[Method, ...] = ("lora", "full")
GROUPS = ("retrieve", "isrel", "issup", "isuse", "text")


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
    for method in METHODS:
        contest = contest_of(job, base_checkpoint(job), DEMO_SIZES, method)
        for system in SYSTEMS:
            job.result(model="demo", method=method, **train(system, contest))


def train_7b_size(job: Job) -> None:
    """Measure LoRA at the shape of Llama-2 7B."""
    contest = contest_of(job, checkpoint_7b(job), SIZES_7B, "lora")
    for system in SYSTEMS:
        job.result(model=contest.base.name, method="lora", **train(system, contest))


def contest_of(
    job: Job, base: Path, sizes: TrainingSizes, method: Method
) -> TrainingContest:
    """Return a contest by the recipe `gpu` on rows that are made of the items."""
    if job.settings.tiny:
        sizes = TINY_SIZES
    rows = job.work / "rows.jsonl"
    if not rows.exists():
        write_rows(rows, rows_from(job.items()))
    config = replace(
        read_recipe("gpu").config,
        method=method,
        precision="bf16" if job.on_gpu else "fp32",
    )
    config = replace(config, epochs=1, max_length=1024, max_passage=512)
    return TrainingContest(
        rows, base, sizes.rows_per_step, sizes.steps, sizes.warm, config
    )


def retrain_demo(job: Job) -> None:
    """Train the first stage of the demo model as `train_demo.py` does, with its seed, as far as the time goes."""
    if job.settings.rows is None:
        raise SkipStep(
            "no rows of the first stage are here; give --rows FOLDER, as make_demo_rows.py writes it (OUT/1)"
        )
    folder = Path(job.settings.rows)
    rows, held_out = _rows_in(folder, "rows.jsonl"), _rows_in(folder, "heldout.jsonl")
    config = replace(
        ANNOTATED[0],
        validate_steps=50,
        checkpoint_steps=10_000,
        device=job.device,
        workers=1,
    )
    config = replace(config, precision="bf16" if job.on_gpu else "auto")
    if job.settings.tiny:
        config = replace(config, max_steps=4, validate_steps=2)
    run = job.work / "stage1"
    done = threading.Event()
    watcher = threading.Thread(
        target=_follow, args=(job, run / "log.jsonl", done), daemon=True
    )
    watcher.start()
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
    raise UserError(
        f"no {name} and no {name}.gz in {folder}; make_demo_rows.py writes rows.jsonl and heldout.jsonl"
    )


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
    steps: list[dict[str, Any]] = []
    while True:
        ended = done.wait(1.0)
        lines = (
            log.read_text(encoding="utf-8").splitlines(keepends=True)
            if log.exists()
            else []
        )
        for line in lines[len(steps) :]:
            if not line.endswith("\n"):  # it is still being written
                break
            steps.append(json.loads(line))
            if "validation" in steps[-1]:
                _validation_result(job, steps)
        if ended:
            return


def _validation_result(job: Job, steps: Sequence[dict[str, Any]]) -> None:
    """Write a line of the table for the validation after the last of some steps."""
    validation = steps[-1]["validation"]
    seconds = sum(step["seconds"] for step in steps)
    tokens = sum(step["tokens"] for step in steps)
    line = {
        "step": steps[-1]["step"],
        "tokens seen": tokens,
        "training seconds": round(seconds, 2),
        "tokens/s": tokens / seconds,
        "training loss": fmean(step["loss"] for step in steps[-25:]),
        "held-out loss": validation["loss"],
    }
    for name in GROUPS:
        if name in validation["groups"]:
            line[f"{name} accuracy"] = validation["groups"][name]["accuracy"]
    job.result(**line)
