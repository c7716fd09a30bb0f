"""Our trainer against the plain one on the same rows, order, optimiser and schedule: tokens a second and losses.

`plain` is transformers' Trainer: rows padded to the longest of a batch, logits at every position, PEFT's own layers.
Tokens are those of the rows; padding earns nothing. The loss is uniform over targets, because theirs is.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfrag.common.errors import UserError
from selfrag.training.run import PrepareRows, plan, rows_of
from selfrag.training.settings import Scale, TrainingConfig, Weighting


def peak_memory_gib() -> float:
    """Return the most resident memory of this process since it started.

    `getrusage` is not asked: on Linux its peak is carried over from the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    kib = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]
    return int(kib) / 2**20


@dataclass(frozen=True, slots=True)
class Contest:
    """What every system trains."""

    rows: Path  # training rows, JSONL
    base: Path  # the base checkpoint
    rows_per_step: int  # batch
    steps: int  # optimiser steps of each system
    warm: int  # first steps that are not timed
    config: TrainingConfig  # method, adapter, rates and lengths

    @property
    def settings(self) -> TrainingConfig:
        """The config of all systems: same rows a step, uniform loss."""
        return replace(
            self.config,
            step_rows=self.rows_per_step,
            max_steps=self.steps,
            weighting=Weighting.uniform(),
            checkpoint_steps=self.steps,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What one system did."""

    system: str  # its name
    losses: tuple[float, ...]  # of each step
    tokens: tuple[int, ...]  # of each step, without padding
    seconds: tuple[float, ...]  # of each step
    warm: int  # first steps that are not timed
    peak_gib: float  # most memory: of the GPU where there is one, allocated for this system, else of the process

    @property
    def speed(self) -> float:
        """Tokens a second over the timed steps."""
        return sum(self.tokens[self.warm :]) / sum(self.seconds[self.warm :])


def train(system: str, contest: Contest) -> Measured:
    """Run one system in this process."""
    import torch

    gpu = torch.cuda.is_available()
    if gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch:
        losses, tokens, seconds = SYSTEMS[system](contest, rows_of(contest.rows, contest.settings), Path(scratch))
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else peak_memory_gib()
    return Measured(system, tuple(losses), tuple(tokens), tuple(seconds), contest.warm, peak)


Curves = tuple[list[float], list[int], list[float]]


def _trainer(contest: Contest, prepare: PrepareRows, scratch: Path) -> Curves:
    from selfrag.training.scale import fit_scaled

    fit_scaled(prepare, contest.base, scratch / "run", contest.settings, Scale(micro_tokens=2**20))
    return _from_log(scratch)


def _from_log(scratch: Path) -> Curves:
    from selfrag.training.reports import read_log

    records = read_log(scratch / "run" / "log.jsonl")
    return [r["loss"] for r in records], [r["tokens"] for r in records], [r["seconds"] for r in records]


def _plain(contest: Contest, prepare: PrepareRows, scratch: Path) -> Curves:
    from transformers import Trainer, TrainingArguments

    trainee, batches = _batches(contest, prepare)
    pad = trainee.tokenizer.eos_token_id

    def collate(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
        import torch

        width = max(len(row["input_ids"]) for row in rows)
        fill = {"input_ids": pad, "labels": -100, "attention_mask": 0}
        return {
            key: torch.tensor([row[key] + [filler] * (width - len(row[key])) for row in rows])
            for key, filler in fill.items()
        }

    rows = [
        {"input_ids": list(e.ids), "labels": list(e.labels), "attention_mask": [1] * len(e)}
        for batch in batches
        for e in batch
    ]
    arguments = TrainingArguments(**_their_arguments(contest, scratch))
    return _timed(Trainer, trainee, contest, batches, args=arguments, train_dataset=rows, data_collator=collate)


def _batches(contest: Contest, prepare: PrepareRows) -> tuple[Any, list[list[Any]]]:
    """The model as PEFT makes it, and the rows of each step in the order of our plan."""
    from selfrag.training.model import DTYPES, chosen_precision, load_trainee

    config = contest.settings
    trainee = load_trainee(
        contest.base,
        method=config.method,
        lora=config.lora,
        seed=config.seed,
        dtype=DTYPES[chosen_precision(config.precision, config.device)[0]],
        attend="sdpa",
        plain=True,
    )
    prepared = prepare(trainee.tokenizer)
    steps = plan(prepared, replace(config, workers=1))
    if any(sum(map(len, step)) != contest.rows_per_step for step in steps):
        raise UserError(
            f"{contest.steps} steps of {contest.rows_per_step} rows do not go evenly into"
            f" {len(prepared.examples)} rows; take fewer steps or another batch"
        )
    batches = [[prepared.examples[row] for load in step for row in load] for step in steps]
    return trainee, [sorted(batch, key=len, reverse=True) for batch in batches]


def _their_arguments(contest: Contest, scratch: Path) -> dict[str, Any]:
    import torch

    return {
        "output_dir": str(scratch),
        "max_steps": contest.steps,
        "per_device_train_batch_size": contest.rows_per_step,
        "max_grad_norm": contest.config.clip,
        "train_sampling_strategy": "sequential",
        "use_cpu": not torch.accelerator.is_available(),
        "bf16": False,  # the model computes in the precision it was loaded in, as ours does
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "seed": contest.config.seed,
    }


def _timed(kind: Any, trainee: Any, contest: Contest, batches: list[list[Any]], **made: Any) -> Curves:
    """Train with the optimiser and schedule of ours, and keep time step by step."""
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    from selfrag.training.run import optimizer_for, rate, synchronize

    config = contest.settings
    optimizer = optimizer_for(trainee, config)
    warmup = max(1, round(config.warmup * contest.steps))
    schedule = LambdaLR(optimizer, lambda step: rate(step, contest.steps, warmup))
    starts: list[float] = []
    ends: list[float] = []
    losses: list[float] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        """Times of the steps, losses of the log."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            starts.append(time.monotonic())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            synchronize()
            ends.append(time.monotonic())

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "loss" in logs:
                losses.append(logs["loss"])

    trainer = kind(model=trainee.model, optimizers=(optimizer, schedule), **made)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Watch())
    trainer.train()
    seconds = [end - start for start, end in zip(starts, ends, strict=True)]
    return losses, [sum(map(len, batch)) for batch in batches], seconds


SYSTEMS: dict[str, Callable[[Contest, PrepareRows, Path], Curves]] = {"plain": _plain, "ours-trainer": _trainer}
"""The others are compared with the first of a run. `ours` is the CPU loop, `ours-trainer` the Trainer."""
