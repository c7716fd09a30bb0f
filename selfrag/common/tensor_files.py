"""Weights of checkpoints as arrays of numpy, read from safetensors files."""

from __future__ import annotations

from collections.abc import Iterator
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
