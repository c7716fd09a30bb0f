"""Our trainer against the plain one on the same rows, order, optimiser and schedule: tokens a second and losses.

`plain` is transformers' Trainer: rows padded to the longest of a batch, logits at every position, PEFT's own layers.
Tokens are those of the rows; padding earns nothing. The loss is uniform over targets, because theirs is.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.benchmarks.speed.workload import Item
from selfrag.common.errors import UserError
from selfrag.training.records import read_log
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken, TrainingRow
from selfrag.training.run import PrepareRows, plan, rows_of
from selfrag.training.settings import Scale, TrainingConfig, Weighting


def peak_memory_gib() -> float:
    """Return the most resident memory of this process since it started.

    `getrusage` is not asked: on Linux its peak is carried over from the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    kib = next(
        line for line in status.read_text().splitlines() if line.startswith("VmHWM")
    ).split()[1]
    return int(kib) / 2**20


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
            yield TrainingRow(
                f"{number}-{place}", "items/passage", item.question, target
            )


@dataclass(frozen=True, slots=True)
class TrainingContest:
    """What every system trains."""

    rows: Path  # training rows, JSONL
    base: Path  # the base checkpoint
    rows_per_step: int  # batch
    steps: int  # optimiser steps of each system
    warm: int  # first steps that are not timed
    config: TrainingConfig  # method, adapter, rates and lengths

    @property
    def settings(self) -> TrainingConfig:
        """Return the config of all systems: same rows a step, uniform loss."""
        return replace(
            self.config,
            step_rows=self.rows_per_step,
            max_steps=self.steps,
            weighting=Weighting.uniform(),
            checkpoint_steps=self.steps,
        )


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Loss, tokens without padding and seconds of each optimiser step."""

    losses: list[float]
    tokens: list[int]
    seconds: list[float]


def train(system: str, contest: TrainingContest) -> dict[str, Any]:
    """Train one system of `SYSTEMS` in this process, and return a line for a table.

    Memory is that of the GPU where there is one, allocated for this system, else the most of the process so far.
    """
    import torch

    gpu = torch.cuda.is_available()
    if gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch:
        steps = SYSTEMS[system](
            contest, rows_of(contest.rows, contest.settings), Path(scratch)
        )
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else peak_memory_gib()
    tokens, seconds = steps.tokens[contest.warm :], steps.seconds[contest.warm :]
    return {
        "system": system,
        "tokens/s": sum(tokens) / sum(seconds),
        "tokens/step": fmean(tokens),
        "timed steps": len(tokens),
        "peak GiB": peak,
        "first loss": steps.losses[0],
        "last loss": steps.losses[-1],
    }


def _ours(contest: TrainingContest, prepare: PrepareRows, scratch: Path) -> TimedSteps:
    from selfrag.training.scale import fit_scaled

    fit_scaled(
        prepare,
        contest.base,
        scratch / "run",
        contest.settings,
        Scale(micro_tokens=2**20),
    )
    records = read_log(scratch / "run" / "log.jsonl")
    losses = [record["loss"] for record in records]
    tokens = [record["tokens"] for record in records]
    seconds = [record["seconds"] for record in records]
    return TimedSteps(losses, tokens, seconds)


def _plain(contest: TrainingContest, prepare: PrepareRows, scratch: Path) -> TimedSteps:
    """Train with transformers' Trainer, and with the optimiser and the schedule of ours."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    from selfrag.training.run import optimizer_for, rate, synchronize

    trainee, batches = _batches(contest, prepare)
    fillers = {
        "input_ids": trainee.tokenizer.eos_token_id,
        "labels": -100,
        "attention_mask": 0,
    }
    rows = []
    for batch in batches:
        for example in batch:
            mask = [1] * len(example)
            rows.append(
                {
                    "input_ids": list(example.ids),
                    "labels": list(example.labels),
                    "attention_mask": mask,
                }
            )

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, Any]:
        width = max(len(row["input_ids"]) for row in batch)
        columns = {}
        for key, filler in fillers.items():
            columns[key] = torch.tensor(
                [row[key] + [filler] * (width - len(row[key])) for row in batch]
            )
        return columns

    config = contest.settings
    optimizer = optimizer_for(trainee, config)
    schedule = LambdaLR(optimizer, lambda step: rate(step, contest.steps, config))
    steps = TimedSteps([], [sum(map(len, batch)) for batch in batches], [])

    class Watch(TrainerCallback):  # type: ignore[misc]
        """Keeps the seconds of each step, and its loss."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            synchronize()
            steps.seconds.append(time.monotonic() - self.start)

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "loss" in logs:
                steps.losses.append(logs["loss"])

    arguments = TrainingArguments(
        output_dir=str(scratch),
        max_steps=contest.steps,
        per_device_train_batch_size=contest.rows_per_step,
        max_grad_norm=config.clip,
        train_sampling_strategy="sequential",
        use_cpu=not torch.accelerator.is_available(),
        bf16=False,  # the model computes in the precision it was loaded in, as ours does
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        seed=config.seed,
    )
    trainer = Trainer(
        model=trainee.model,
        optimizers=(optimizer, schedule),
        args=arguments,
        train_dataset=rows,
        data_collator=collate,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Watch())
    trainer.train()
    return steps


def _batches(
    contest: TrainingContest, prepare: PrepareRows
) -> tuple[Any, list[list[Any]]]:
    """Return the model as PEFT makes it, and the rows of each step in the order of our plan."""
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
    batches = []
    for step in plan(prepared, replace(config, workers=1)):
        batch = [prepared.examples[row] for load in step for row in load]
        if len(batch) != contest.rows_per_step:
            raise UserError(
                f"{contest.steps} steps of {contest.rows_per_step} rows do not go evenly into"
                f" {len(prepared.examples)} rows; take fewer steps or another batch"
            )
        batches.append(sorted(batch, key=len, reverse=True))
    return trainee, batches


SYSTEMS: dict[str, Callable[[TrainingContest, PrepareRows, Path], TimedSteps]] = {
    "ours, packed rows": _ours,
    "plain Trainer, padded rows": _plain,
}
