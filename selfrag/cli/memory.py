"""What `selfrag doctor` knows of memory: the GPUs, what is free, what a checkpoint takes, and what to set."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.common import pretrained
from selfrag.common.errors import count_of

GB = 2**30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHARE = 0.9
"""Share of a GPU's memory that vLLM takes, `gpu_memory_utilization`."""
_BESIDE = {"cuda": 1 * GB, "cpu": 2 * GB}
"""What an engine needs beside weights and the keys and values of one sequence: activations, graphs, its own cache."""
_QUERY = "--query-gpu=name,driver_version,memory.total,memory.free"
_FEWEST_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class GPU:
    """One GPU, as `nvidia-smi` reports it."""

    name: str
    driver: str
    total: int  # bytes
    free: int  # bytes


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Memory that a checkpoint takes in a number format, in bytes."""

    weights: int
    token: int  # keys and values of one token
    context: int  # most tokens of a sequence


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model fits."""

    detail: str
    fits: bool
    fix: str = ""


def read_gpus() -> list[GPU]:
    """Return the NVIDIA GPUs of this machine; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, _QUERY, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    gpus = []
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[2].isdecimal() and parts[3].isdecimal():
            gpus.append(
                GPU(parts[0], parts[1], int(parts[2]) * 2**20, int(parts[3]) * 2**20)
            )
    return gpus


def free_memory() -> int | None:
    """Return the free memory of the machine in bytes; None on systems other than Linux."""
    meminfo = Path("/proc/meminfo")
    available = re.search(
        r"^MemAvailable:\s+(\d+) kB",
        meminfo.read_text() if meminfo.exists() else "",
        re.MULTILINE,
    )
    return None if available is None else int(available[1]) * 1024


def model_size(folder: Path, number_format: str) -> ModelSize:
    """Return the memory that a checkpoint takes, from the heads of its weight files and its configuration."""
    width = _BYTES.get(number_format)
    weights = sum(
        _weight_bytes(file, width) for file in sorted(folder.glob("*.safetensors"))
    )
    if weights == 0:  # older files say no shapes, so that their own size must do
        weights = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))
    config: Any = pretrained.load(
        "AutoConfig", str(folder), local_files_only=True
    ).get_text_config()
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    token = 2 * config.num_hidden_layers * key_heads * head_size * (width or 2)
    return ModelSize(
        weights, token, int(getattr(config, "max_position_embeddings", 0) or 0)
    )


def _weight_bytes(file: Path, width: int | None) -> int:
    """Return the size of the tensors of a file; numbers with a fraction count `width` bytes, if that is given."""
    from safetensors import safe_open

    size = 0
    with safe_open(str(file), framework="np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            part = tensors.get_slice(name)
            bits = int(re.sub(r"\D", "", part.get_dtype().partition("_")[0]) or 8)
            is_plain = part.get_dtype() in ("F32", "BF16", "F16")
            size += math.prod(part.get_shape()) * (
                width if is_plain and width else bits // 8
            )
    return size


def check_fit(size: ModelSize, gpus: list[GPU], free: int | None) -> Fit:
    """Compare a model with the largest GPU, or with the memory of a machine that has none."""
    needed = f"{size.weights / GB:.1f} GB of weights, {size.token / 1024:.0f} KB a token of context"
    if size.context:
        needed += f" ({size.token * size.context / GB:.1f} GB for {count_of(size.context, 'tokens', form=',')})"
    if gpus:
        gpu = max(gpus, key=lambda gpu: gpu.free)
        room = min(gpu.free, int(gpu.total * _SHARE)) - _BESIDE["cuda"]
        place = f"a GPU has {gpu.free / GB:.1f} GB free"
    elif free is not None:
        room = free - _BESIDE["cpu"]
        place = f"{free / GB:.1f} GB of memory are free"
    else:
        return Fit(needed, fits=True)
    if size.weights + size.token * size.context <= room:
        return Fit(f"{needed}; {place}: it fits", fits=True)
    tokens = (
        (room - size.weights) // max(1, size.token) // _FEWEST_TOKENS * _FEWEST_TOKENS
    )
    if tokens >= _FEWEST_TOKENS:
        return Fit(
            f"{needed}; {place}: a shorter context fits",
            fits=True,
            fix=f"--engine-set max_model_len={tokens}",
        )
    return Fit(
        f"{needed}; {place}: it does not fit",
        fits=False,
        fix=_smaller(size, room, len(gpus)),
    )


def _smaller(size: ModelSize, room: int, gpus: int) -> str:
    """Return what makes a model fit whose weights are too large for one device."""
    devices = next(
        (count for count in (2, 4, 8) if count <= gpus and size.weights / count < room),
        None,
    )
    if devices is not None:
        return f"split it: --engine vllm --engine-set tensor_parallel_size={devices}"
    halves = "--dtype bfloat16 halves float32; else take" if gpus == 0 else "take"
    return f"{halves} a quantised checkpoint, a smaller model, or a server elsewhere: --engine http://HOST:PORT"


def gpu_lines(gpus: list[GPU]) -> Iterator[tuple[str, str]]:
    """Yield the name of each GPU and what is known of it."""
    for number, gpu in enumerate(gpus):
        memory = f"{gpu.free / GB:.1f} of {gpu.total / GB:.1f} GB free"
        yield f"gpu {number}", f"{gpu.name}, driver {gpu.driver}, {memory}"
