"""Weights of checkpoints as arrays of numpy: read from safetensors files, written, and merged with LoRA pairs."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from selfrag.common.errors import UserError

BFLOAT16: DTypeLike = ml_dtypes.bfloat16
"""The type of numpy for bfloat16; importing it lets safetensors read such weights."""


class TensorFiles:
    """The tensors of a checkpoint's safetensors files, read one at a time."""

    def __init__(self, directory: Path) -> None:
        """Open the files.

        Raises:
            UserError: there are none, or one is damaged.
        """
        from safetensors import SafetensorError, safe_open

        self._directory = directory
        self._files = ExitStack()
        self._places: dict[str, Any] = {}
        for path in weight_files(directory):
            try:
                opened = self._files.enter_context(safe_open(path, framework="np"))
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} cannot be read: {error}") from error
            self._places |= dict.fromkeys(opened.keys(), opened)

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a tensor in the number format of the file."""
        if name not in self._places:
            raise UserError(f"{self._directory} lacks the weights {name}")
        values: NDArray[Any] = self._places[name].get_tensor(name)
        return values

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor."""
        shape: list[int] = self._places[name].get_slice(name).get_shape()
        return shape

    def float32(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32."""
        return self[name].astype(np.float32)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint.

    Raises:
        UserError: there are none.
    """
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise UserError(
            f"{directory} holds no safetensors files; use --engine transformers"
        )
    return paths


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
