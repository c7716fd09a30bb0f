"""Keys and values of running sequences, as tensors. Knows the cache interface of transformers, no request and no text.

A `Prefix` is one sequence. A `Slab` holds all running sequences of a batch in buffers with spare rows and columns: a
new token is written in place, a finished row costs the copy of one row, and only growth copies everything. Rows are
right-aligned, so the mask follows from their lengths alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

SPARE_COLUMNS = 64
"""Columns added at each growth: one copy of the slab for so many tokens."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values of the first tokens of one sequence.

    Attributes:
        layers: for each layer the keys and the values, [heads, tokens, head size].
    """

    layers: tuple[tuple[Tensor, Tensor], ...]

    def __len__(self) -> int:
        return int(self.layers[0][0].shape[1])

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def part(self, start: int, end: int) -> Prefix:
        """A view of tokens `start` to `end`."""
        return Prefix(tuple((keys[:, start:end], values[:, start:end]) for keys, values in self.layers))

    @staticmethod
    def joined(pieces: Sequence[Prefix]) -> Prefix:
        """A copy of consecutive pieces as one, holding no other memory."""
        return Prefix(
            tuple(
                (torch.cat([keys for keys, _ in layer], dim=1), torch.cat([values for _, values in layer], dim=1))
                for layer in zip(*(piece.layers for piece in pieces), strict=True)
            )
        )


def padded_cache(prefixes: Sequence[Prefix | None]) -> tuple[Any, int]:
    """An ordinary cache in which row i starts with prefix i, right-aligned, and its number of columns."""
    width = max((len(prefix) for prefix in prefixes if prefix is not None), default=0)
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    first = next((prefix for prefix in prefixes if prefix is not None), None)
    for index, pair in enumerate(first.layers if first is not None else ()):
        filled = []
        for which, like in enumerate(pair):
            buffer = like.new_zeros((len(prefixes), like.shape[0], width, like.shape[2]))
            for row, prefix in enumerate(prefixes):
                if prefix is not None:
                    buffer[row, :, width - len(prefix) :] = prefix.layers[index][which]
            filled.append(buffer)
        cache.update(filled[0], filled[1], index)
    return cache, width


def row_of(cache: Any, row: int, start: int, end: int) -> Prefix:
    """Columns `start` to `end` of one row of a cache, as a view."""
    return Prefix(tuple((layer.keys[row, :, start:end], layer.values[row, :, start:end]) for layer in cache.layers))


class _Buffer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values with spare rows and columns."""

    def __init__(self, keys: Tensor, values: Tensor, rows: int, used: int) -> None:
        super().__init__()
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values = keys, values
        self.rows, self.used = rows, used
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        end = self.used + key_states.shape[-2]
        self.keys[: self.rows, :, self.used : end] = key_states
        self.values[: self.rows, :, self.used : end] = value_states
        self.used = end
        return self.keys[: self.rows, :, :end], self.values[: self.rows, :, :end]

    def get_seq_length(self) -> int:
        return self.used


class Slab:
    """The keys and values of all running sequences of one batch."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._layers: list[_Buffer] = []

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def used(self) -> int:
        """Columns in use; row i fills the last `lengths[i]` of them."""
        return self._layers[0].used if self._layers else 0

    def add(self, sequences: Sequence[Sequence[Prefix]]) -> None:
        """Copy new rows in, each given as consecutive pieces."""
        if not sequences:
            return
        lengths = [sum(len(piece) for piece in pieces) for pieces in sequences]
        self._reserve(sequences[0][0], len(self) + len(lengths), max(lengths))
        used = self.used
        for row, (pieces, length) in enumerate(zip(sequences, lengths, strict=True), start=len(self)):
            for index, layer in enumerate(self._layers):
                # What an earlier row left behind is masked, but must be finite: 0 * NaN is NaN.
                layer.keys[row, :, : used - length] = 0
                layer.values[row, :, : used - length] = 0
                at = used - length
                for piece in pieces:
                    keys, values = piece.layers[index]
                    layer.keys[row, :, at : at + len(piece)] = keys
                    layer.values[row, :, at : at + len(piece)] = values
                    at += len(piece)
        self.lengths += lengths
        self._set_rows()

    def extend(self) -> Any:
        """Make room for one more token a row and return the cache to run the model with; call it once a step."""
        if self._layers[0].keys.shape[2] == self.used:
            self._rebuild(self._layers[0].keys.shape[0], max(self.lengths))
        self.lengths = [length + 1 for length in self.lengths]
        return Cache(layers=list(self._layers))

    def row(self, row: int) -> Prefix:
        """One row as a view, valid until the slab changes."""
        used = self.used
        return row_of(Cache(layers=list(self._layers)), row, used - self.lengths[row], used)

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        last = len(self) - 1
        if row != last:
            for layer in self._layers:
                layer.keys[row] = layer.keys[last]
                layer.values[row] = layer.values[last]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if self.lengths:
            self._set_rows()
        else:
            self._layers = []

    def _set_rows(self) -> None:
        for layer in self._layers:
            layer.rows = len(self.lengths)

    def _reserve(self, like: Prefix, rows: int, longest: int) -> None:
        if not self._layers:
            for keys, values in like.layers:
                shapes = [(rows, pair.shape[0], longest + SPARE_COLUMNS, pair.shape[2]) for pair in (keys, values)]
                self._layers.append(_Buffer(keys.new_zeros(shapes[0]), values.new_zeros(shapes[1]), 0, longest))
        elif rows > self._layers[0].keys.shape[0] or longest > self.used:
            self._rebuild(max(rows, self._layers[0].keys.shape[0]), max(longest, *self.lengths))

    def _rebuild(self, rows: int, used: int) -> None:
        """New buffers of `used` columns plus spare ones; columns that no row needs any more fall away."""
        live, keep = len(self), max(self.lengths)
        for layer in self._layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                new = old.new_zeros((rows, old.shape[1], used + SPARE_COLUMNS, old.shape[3]))
                new[:live, :, used - keep : used] = old[:live, :, layer.used - keep : layer.used]
                setattr(layer, name, new)
            layer.used = used
