"""Starts a run in many processes with `accelerate launch`; each process runs the same command again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from selfrag.errors import UserError, require
from selfrag.training.recipes import launch_file
from selfrag.training.settings import Scale


def launched() -> bool:
    """Whether this process was started by `accelerate launch` or torchrun, among others."""
    return "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ


def processes_here() -> int:
    """How many processes fit this machine: one a GPU, or one."""
    import torch

    return max(1, torch.accelerator.device_count() if torch.accelerator.is_available() else 1)


def command(scale: Scale, processes: int, module: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs `python -m module arguments` in every process.

    Raises:
        UserError: the settings need GPUs or a package that is not here.
    """
    import torch

    require("accelerate", extra="train")
    gpu = torch.cuda.is_available()
    if scale.sharding == "zero3":
        require("deepspeed", extra="deepspeed")
    if scale.sharding != "none" and not gpu:
        raise UserError(f"sharding = {scale.sharding!r} needs GPUs, and there is none here; use the recipe cpu or cpus")
    config = launch_file(scale, gpu=gpu)
    options = ["--config_file", _usable(config), "--num_processes", str(processes), "--main_process_port", "0"]
    return [sys.executable, "-m", "accelerate.commands.launch", *options, "-m", module, *arguments]


def launch(line: Sequence[str]) -> int:
    """Run it and wait; the exit code is that of the first process that failed."""
    return subprocess.run(list(line), check=False).returncode  # noqa: S603 - our own command line


def _usable(config: Path) -> str:
    """DeepSpeed's file is named relative to ours: accelerate looks for it in the working directory."""
    text = config.read_text()
    if "zero3.json" not in text:
        return str(config)
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="selfrag-", delete=False) as file:
        file.write(text.replace("zero3.json", str(config.with_name("zero3.json"))))
    return file.name
