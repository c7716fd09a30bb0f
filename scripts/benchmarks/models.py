"""The checkpoints of the steps: the demo model and its base from parts or the cache, and one of 7B from nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from scripts.benchmarks.job import Job
from scripts.benchmarks.parts import fill_cache
from scripts.benchmarks.random_models import LLAMA_7B, TINY_7B, TINY_DEMO, save_model
from selfrag.demo import base_path, model_path


def prepare_demo(job: Job) -> Path:
    """Put the parts of the base model into the cache, if there are any; returns the demo checkpoint."""
    if job.settings.parts is not None:
        fill_cache(Path(job.settings.parts))
    return demo_checkpoint(job)


def demo_checkpoint(job: Job) -> Path:
    """Return the folder of the demo model; of a random one in a tiny run."""
    if job.settings.tiny:
        return save_model(TINY_DEMO, job.items(), job.work / "demo", job.device, torch.float32)
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
