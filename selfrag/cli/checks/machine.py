"""Memory, cores, accelerators and disk. Reads what the operating system says; measures nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from retrieval.pretrained import fast_format
from selfrag.cli.checks.finding import Finding
from selfrag.demo.assets import ASSETS
from selfrag.demo.cache import cache_home
from selfrag.demo.download import asset_path

_GB = 2**30
_FIRST_RUN_BYTES = int(1.5 * _GB)  # downloads, their unpacked files, the merged checkpoint, the index


def check_machine() -> Iterator[Finding]:
    """What this machine offers, and whether the default model would fit."""
    yield Finding("cores", str(os.cpu_count()))
    yield Finding("number format", f"bfloat16 checkpoints are loaded in {fast_format()}")
    free = free_memory()
    if free is not None:
        enough = free > 2 * _GB
        fix = "" if enough else "close other programs: the demo model with vLLM takes about 2 GB"
        yield Finding("memory", f"{free / _GB:.1f} GB free", "ok" if enough else "note", fix)
    yield _disk()


def free_memory() -> int | None:
    """Bytes that could be used without swapping; None where the system does not say (other than Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines)
    return int(values["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in values else None


def _disk() -> Finding:
    home = cache_home()
    missing = [asset.requirement for asset in ASSETS if not asset_path(asset).exists()]
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{home}, {free / _GB:.1f} GB free, " + (f"not yet there: {', '.join(missing)}" if missing else "complete")
    if not os.access(existing, os.W_OK):
        return Finding("cache", f"{existing} cannot be written", "broken", "set SELFRAG_CACHE to another folder")
    if missing and free < _FIRST_RUN_BYTES:
        return Finding("cache", detail, "broken", "free 1.5 GB, or set SELFRAG_CACHE to a folder on another disk")
    if missing:
        return Finding("cache", detail, "note", "`selfrag demo` downloads it once (about 180 MB)")
    return Finding("cache", detail)
