"""Measure training speed: `bench_training.py [--rows ROWS.jsonl] [--base DIR] [--steps 12]`.

Our trainer packs rows; transformers' Trainer with PEFT pads them to the longest of a batch and computes logits at every
position. Both train the same rows in the same order, with the same optimiser and schedule. The loss is uniform over
targets, because theirs is. Tokens are those of the rows; padding earns nothing. Rows are made of questions and passages
where none are named.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import Item, items_of
from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.loading import resolve_model
from selfrag.training.recipes import read_recipe
from selfrag.training.records import read_log
from selfrag.training.rows import (
    TargetEvidence,
    TargetText,
    TargetToken,
    TrainingRow,
    write_rows,
)
from selfrag.training.run import PrepareRows, plan, rows_of
from selfrag.training.settings import Scale, TrainingConfig, Weighting

WARM = 2
"""First steps, which are not timed."""


@dataclass(slots=True)
class TimedSteps:
    """Loss, tokens without padding and seconds of each optimiser step."""

    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


Trainer = Callable[[PrepareRows, Path, Path, TrainingConfig], TimedSteps]


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
            key = f"{number}-{place}"
            yield TrainingRow(key, "items/passage", item.instruction, target)


def train_ours(
    prepare: PrepareRows, base: Path, scratch: Path, config: TrainingConfig
) -> TimedSteps:
    """Train with our trainer."""
    from selfrag.training.scale import fit_scaled

    fit_scaled(prepare, base, scratch / "run", config, Scale(micro_tokens=2**20))
    steps = TimedSteps()
    for record in read_log(scratch / "run" / "log.jsonl"):
        steps.losses.append(record["loss"])
        steps.tokens.append(record["tokens"])
        steps.seconds.append(record["seconds"])
    return steps


def train_plain(
    prepare: PrepareRows, base: Path, scratch: Path, config: TrainingConfig
) -> TimedSteps:
    """Train with transformers' Trainer, and with the optimiser and the schedule of ours."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    from selfrag.training.model import chosen_precision, load_trainee
    from selfrag.training.run import optimizer_for, rate, synchronize

    precision, _ = chosen_precision(config.precision, config.device)
    config = replace(config, precision=precision)
    trainee = load_trainee(base, config, attend="sdpa", plain=True)
    steps, rows = TimedSteps(), []
    prepared = prepare(trainee.tokenizer)
    for loads in plan(prepared, replace(config, workers=1)):
        batch = [prepared.examples[row] for load in loads for row in load]
        if len(batch) != config.step_rows:
            raise UserError(
                f"{config.max_steps} steps of {config.step_rows} rows do not go evenly into"
                f" {len(prepared.examples)} rows; take fewer steps or another batch"
            )
        steps.tokens.append(sum(map(len, batch)))
        rows += sorted(batch, key=len, reverse=True)
    filler = trainee.tokenizer.eos_token_id

    def collate(batch: list[Any]) -> dict[str, Any]:
        width = max(map(len, batch))
        columns: dict[str, list[list[int]]] = {
            "input_ids": [],
            "labels": [],
            "attention_mask": [],
        }
        for row in batch:
            padding = width - len(row)
            columns["input_ids"].append([*row.ids, *[filler] * padding])
            columns["labels"].append([*row.labels, *[-100] * padding])
            columns["attention_mask"].append([1] * len(row) + [0] * padding)
        return {name: torch.tensor(column) for name, column in columns.items()}

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

    optimizer = optimizer_for(trainee, config)
    most = config.max_steps or 0
    arguments = TrainingArguments(
        output_dir=str(scratch),
        max_steps=most,
        per_device_train_batch_size=config.step_rows,
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
        optimizers=(
            optimizer,
            LambdaLR(optimizer, lambda step: rate(step, most, config)),
        ),
        args=arguments,
        train_dataset=rows,
        data_collator=collate,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Watch())
    trainer.train()
    return steps


SYSTEMS: dict[str, Trainer] = {
    "ours, packed rows": train_ours,
    "plain Trainer, padded rows": train_plain,
}


def train(
    system: str, rows: Path, base: Path, config: TrainingConfig
) -> dict[str, Any]:
    """Train one of `SYSTEMS` in this process, and return a line for a table.

    Memory is that of the GPU where there is one, allocated for this system, else the most of the process so far.
    """
    import torch

    gpu = torch.cuda.is_available()
    if gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as scratch:
        steps = SYSTEMS[system](rows_of(rows, config), base, Path(scratch), config)
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else peak_memory_gib()
    tokens, seconds = steps.tokens[WARM:], steps.seconds[WARM:]
    return {
        "system": system,
        "tokens/s": sum(tokens) / sum(seconds),
        "tokens/step": fmean(tokens),
        "timed steps": len(tokens),
        "peak GiB": peak,
        "first loss": steps.losses[0],
        "last loss": steps.losses[-1],
    }


def peak_memory_gib() -> float:
    """Return the most resident memory of this process since it started.

    `getrusage` is not asked: on Linux its peak is carried over from the process that started this one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    [line] = [line for line in status.read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) / 2**20


@command
def main(
    *,
    rows: Path | None = None,
    data: Path | None = None,
    base: str = "demo-base",
    recipe: str = "cpu",
    method: Literal["lora", "full"] = "lora",
    precision: Literal["fp32", "bf16"] = "fp32",
    batch: int = 4,
    steps: int = 12,
    passages: int = 1,
    out: Path | None = None,
) -> None:
    """Print a line for each trainer.

    Args:
        rows: training rows; their number is a multiple of the batch.
        data: questions with passages that rows are made of; else of the demo corpus.
        base: base checkpoint.
        recipe: adapter, rates and lengths.
        method: lora or full.
        precision: fp32 or bf16.
        batch: rows of a step.
        steps: optimiser steps.
        passages: of each question, a row each.
        out: JSON file with everything measured.
    """
    report = Report(out)
    config = replace(
        read_recipe(recipe).config,
        method=method,
        precision=precision,
        epochs=1,
        step_rows=batch,
        max_steps=steps,
        weighting=Weighting.uniform(),
        checkpoint_steps=steps,
    )
    with tempfile.TemporaryDirectory() as scratch:
        if rows is None:
            rows = Path(scratch) / "rows.jsonl"
            needed = batch * steps
            items = items_of(data, -(-needed // passages), passages)
            write_rows(rows, islice(rows_from(items), needed))
        for system in SYSTEMS:
            line = train(system, rows, resolve_model(base), config)
            report.add(method=method, **line)
    report.print()


if __name__ == "__main__":
    main()
