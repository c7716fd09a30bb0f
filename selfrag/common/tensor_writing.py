"""Weights of checkpoints as arrays of numpy: written as safetensors files, and merged with LoRA pairs."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfrag.common.tensor_files import BFLOAT16


def write_tensors(
    shapes: Mapping[str, Sequence[int]],
    tensor: Callable[[str], NDArray[Any]],
    path: Path,
) -> None:
    """Write tensors of bfloat16 into one safetensors file, with the bytes that transformers would write.

    One tensor at a time is in memory.

    Args:
        shapes: the shape of each tensor, by name.
        tensor: returns the tensor of a name.
        path: of the file.
    """
    names = sorted(shapes)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + 2 * math.prod(shapes[name])
        place = [start, end]
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": place}
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name in names:
            values = np.ascontiguousarray(tensor(name), BFLOAT16)
            file.write(values.view(np.uint8).data)


_BLOCK = 2**16
"""Numbers that are summed at a time; two blocks of float32 stay in a core's cache."""


def merge_pair(
    weight: NDArray[Any], down: NDArray[Any], up: NDArray[Any], scale: float
) -> None:
    """Add `scale * up @ down` to `weight` in place, with the same bytes on every machine.

    A matrix product sums in the order that suits a processor. Here the products of one inner index after the other are
    added in float32 by elementwise operations, which IEEE 754 fixes to the last bit, and the sum is rounded once. The
    order is that of the bf16 instructions of AVX512, with which the published models were merged.

    Args:
        weight: [out, in].
        down: [rank, in], taken in the type of `weight`.
        up: [out, rank], taken in the type of `weight`.
        scale: alpha / rank.
    """
    kind = weight.dtype
    down = down.astype(kind).astype(np.float32)
    up = up.astype(kind).astype(np.float32)
    rank, width = down.shape
    order = [k for pair in range(0, rank, 2) for k in (pair + 1, pair) if k < rank]
    rows = max(1, _BLOCK // width)
    for start in range(0, len(weight), rows):
        block = weight[start : start + rows]
        factors = up[start : start + rows]
        total = np.zeros(block.shape, np.float32)
        product = np.empty_like(total)
        for k in order:
            np.multiply(factors[:, k, None], down[k], out=product)
            total += product
        total *= np.float32(scale)
        block[:] = (block.astype(np.float32) + total).astype(kind)
