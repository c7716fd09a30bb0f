"""The checkpoints of the steps: the demo model and its base from parts or the cache, and one of 7B from nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from scripts.benchmarks.job import Job
from scripts.benchmarks.random_models import LLAMA_7B, TINY_7B, TINY_DEMO, save_model
from selfrag.common.errors import UserError
from selfrag.demo import BASE_MODEL, asset_path, base_path, file_digest, model_path
from selfrag.demo.download import publish


def prepare_demo(job: Job) -> None:
    """Put the parts of the base model into the cache, if there are any, and make the demo checkpoint."""
    if job.settings.parts is not None:
        fill_cache(Path(job.settings.parts))
    demo_checkpoint(job)


def fill_cache(folder: Path) -> None:
    """Join the parts of the demo's base model, in the order of their names, where `selfrag.demo` looks for it.

    Raises:
        UserError: the joined file is another one.
    """
    [(name, checksum)] = BASE_MODEL.files.items()

    def join(draft: Path) -> None:
        with (draft / name).open("wb") as target:
            for part in sorted(folder.iterdir()):
                target.write(part.read_bytes())
        if file_digest(draft / name) != checksum:
            raise UserError(
                f"{folder}: its files, joined by name, are not {name}; split the right file"
            )

    publish(asset_path(BASE_MODEL), join, needs=BASE_MODEL.megabytes << 20)


def demo_checkpoint(job: Job) -> Path:
    """Return the folder of the demo model; of a random one in a tiny run."""
    if job.settings.tiny:
        return save_model(
            TINY_DEMO, job.items(), job.work / "demo", job.device, torch.float32
        )
    return model_path()


def base_checkpoint(job: Job) -> Path:
    """Return the folder of the demo's base model; of the same random one in a tiny run."""
    return demo_checkpoint(job) if job.settings.tiny else base_path()


def checkpoint_7b(job: Job) -> Path:
    """Return the folder of a random checkpoint of the shape of Llama-2 7B, in memory where there is room."""
    shape = TINY_7B if job.settings.tiny else LLAMA_7B
    needed = 1.2 * shape.parameters * torch.bfloat16.itemsize
    folder, memory = job.work, job.settings.shared_memory
    if memory.parent.is_dir() and shutil.disk_usage(memory.parent).free > needed:
        folder = memory
    name = shape.name.lower().replace(" ", "-").replace(",", "")
    return save_model(shape, job.items(), folder / name, job.device, torch.bfloat16)
