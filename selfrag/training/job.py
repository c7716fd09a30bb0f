"""A training job: from rows, base model and recipe to a run, an adapter or checkpoint, and a model card.

It runs in one process, or in many that `accelerate launch` starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from selfrag.common.errors import UserError, require
from selfrag.training.recipes import launch_file
from selfrag.training.run import PrepareRows, TrainedModel, fit, rows_of
from selfrag.training.settings import ADAPTER, MODEL, RUN, Scale, TrainingConfig


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What to train, from what, and where to."""

    rows: Path  # training rows, JSONL
    base: Path  # directory of the base checkpoint
    out: Path  # folder of the job
    config: TrainingConfig  # what decides the result
    scale: Scale | None = None  # for the Trainer; None for the CPU loop
    recipe: str = "cpu"  # name of the recipe, for the model card
    # earlier stage to begin with: folder of a run, or of an adapter
    start: Path | None = None
    # leave rows out whose target does not fit; else they are an error
    leave_long: bool = False

    @property
    def run_dir(self) -> Path:
        """Manifest, log and checkpoints."""
        return self.out / RUN

    @property
    def product(self) -> Path:
        """Return the adapter, or the checkpoint of a model trained in full."""
        return self.out / (ADAPTER if self.config.method == "lora" else MODEL)


def run(job: TrainingJob) -> Path | None:
    """Train, or continue, and write what comes out. Started again after its end, it only writes what is missing.

    Returns the product; None in a process that is not the main one. Errors are those of `trained`.
    """
    from selfrag.training.export import save_adapter, save_checkpoint

    prepare = rows_of(job.rows, job.config, leave_long=job.leave_long)
    result = trained(
        prepare, job.base, job.run_dir, job.config, job.scale, start=job.start
    )
    if result is None:
        return None
    if not job.product.exists():
        save = save_checkpoint
        if job.config.method == "lora":
            save = save_adapter
        save(result.trainee, job.product, result.state)
    describe(job)
    return job.product


def trained(
    prepare: PrepareRows,
    base: Path,
    run_dir: Path,
    config: TrainingConfig,
    scale: Scale | None,
    *,
    start: Path | None = None,
) -> TrainedModel | None:
    """Train by the CPU loop, or with a `scale` through the Trainer; None in a process that is not the main one.

    Raises:
        UserError: as `run.fit` and `scale.fit_scaled`.
    """
    if scale is None:
        return TrainedModel(fit(prepare, base, run_dir, config, start=start), None)
    from selfrag.training.scale import fit_scaled

    return fit_scaled(prepare, base, run_dir, config, scale, start=start)


def describe(job: TrainingJob) -> None:
    """Write the model card of a finished run, from its journal."""
    from selfrag.training import reports

    product = reports.ADAPTER if job.config.method == "lora" else reports.CHECKPOINT
    reports.write_card(
        job.run_dir, job.product, product, base=base_name(job.base), recipe=job.recipe
    )


def base_name(base: Path) -> str:
    """Return the public name of a base model: that on the hub, or the last part of its path, never the path."""
    place = base.resolve()
    name = place.name
    if place.parent.name == "snapshots" and place.parent.parent.name.startswith(
        "models--"
    ):
        name = place.parent.parent.name.removeprefix("models--").replace("--", "/")
    if not name:
        raise UserError(f"{base}: give the directory of a checkpoint")
    return name


def leave_processes() -> None:
    """Leave the group of processes that trained together, if any: torch can abort one that ends within it."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def launched(
    scale: Scale, processes: int | None, module: str, arguments: Sequence[str]
) -> int | None:
    """Run `python -m module arguments` in many processes by `accelerate launch`, where that is asked for.

    Returns:
        The exit code of the first process that failed, or 0; None where this process is to train by itself.

    Raises:
        UserError: the settings need GPUs or a package that is not here.
    """
    import torch

    # accelerate or torchrun started this one
    if "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return None
    devices = 1
    if torch.accelerator.is_available():
        devices = torch.accelerator.device_count()
    count = processes or max(1, devices)
    if count == 1 and scale.sharding == "none":
        return None
    require("accelerate", extra="train")
    gpu = torch.cuda.is_available()
    if scale.sharding == "zero3":
        require("deepspeed", extra="deepspeed")
    if scale.sharding != "none" and not gpu:
        raise UserError(
            f"sharding = {scale.sharding!r} needs GPUs, and there is none here; use the recipe cpu or cpus"
        )
    program = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        _usable(launch_file(scale, gpu=gpu)),
        "--num_processes",
        str(count),
        "--main_process_port",
        "0",
        "-m",
        module,
    ]
    return subprocess.run([*program, *arguments], check=False).returncode  # noqa: S603 - our own command line


def _usable(config: Path) -> str:
    """DeepSpeed's file is named relative to ours: accelerate looks for it in the working directory."""
    text = config.read_text()
    if "zero3.json" not in text:
        return str(config)
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml", prefix="selfrag-", delete=False
    ) as file:
        file.write(text.replace("zero3.json", str(config.with_name("zero3.json"))))
    return file.name
