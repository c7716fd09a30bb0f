"""Weights of a Llama-like model, rotated so that 8 bits lose little; in exact numbers the model is the same.

A few channels of the hidden states are far larger than the others, and a scale for all of them leaves the others few
bits. QuaRot ([2404.00456](https://arxiv.org/abs/2404.00456)) multiplies the hidden states by an orthogonal matrix,
which spreads such a channel over all. The matrix goes into the weights: of the embedding, of what a layer reads and of
what it adds. A norm commutes with it once its own weights stand in the matrices that follow. Values are rotated head
by head. Only the input of `down_proj` is rotated while the model runs, in blocks.
"""

from __future__ import annotations

import math

import numpy as np

from selfrag.extensions.onnx.checkpoint import DecoderFacts, WeightArray
from selfrag.interface import TensorFiles

EMBEDDING = "model.embed_tokens.weight"
_WIDEST = 64
"""Most channels of a block."""
_NORMS = {
    "q_proj": "input_layernorm",
    "k_proj": "input_layernorm",
    "v_proj": "input_layernorm",
    "gate_proj": "post_attention_layernorm",
    "up_proj": "post_attention_layernorm",
}
"""The norm that a matrix of a layer reads."""


def orthogonal(size: int) -> WeightArray:
    """Return an orthogonal matrix [size, size]: of Hadamard for a power of two, so that all its numbers are as large.

    The signs of its rows, and the matrices of other sizes, are drawn at random, always the same.
    """
    random = np.random.default_rng(size)
    if size & (size - 1):
        matrix = np.linalg.qr(random.standard_normal((size, size)))[0]
    else:
        matrix = np.ones((1, 1))
        while len(matrix) < size:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        matrix *= random.choice([-1, 1], (size, 1)) / np.sqrt(size)
    return matrix.astype(np.float32)


def rotate_blocks(values: WeightArray, matrix: WeightArray) -> WeightArray:
    """Multiply each block of the last axis by a matrix [block, block]."""
    blocks = values.reshape(*values.shape[:-1], -1, len(matrix))
    return (blocks @ matrix).reshape(values.shape)


class RotatedWeights:
    """The weights of a checkpoint by name, rotated.

    Attributes:
        block: [size, size], by which the graph multiplies each block of the input of `down_proj`.
    """

    def __init__(self, facts: DecoderFacts, weights: TensorFiles) -> None:
        self._facts = facts
        self._weights = weights
        width = weights.shape(EMBEDDING)[1]
        size = math.gcd(width, _WIDEST)
        self._narrow = orthogonal(size)
        self._wide = orthogonal(width // size)
        self._head = orthogonal(facts.head_size)
        inner = weights.shape("model.layers.0.mlp.down_proj.weight")[1]
        self.block = orthogonal(math.gcd(inner, _WIDEST))

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def float32(self, name: str) -> WeightArray:
        """Return the weights of this name, in the layout of the checkpoint."""
        module, _, what = name.rpartition(".")
        part, _, kind = module.rpartition(".")
        is_tied = kind == "lm_head" and self._facts.tied
        values = self._weights.float32(EMBEDDING if is_tied else name)
        if kind in ("q_norm", "k_norm"):
            return values
        if kind.endswith("norm"):
            return np.ones_like(values)
        if what == "bias":
            return rotate_blocks(values, self._head) if kind == "v_proj" else values
        norm = self._norm_before(part, kind)
        if norm is not None:
            values = values * self._weights.float32(norm)
        if kind == "v_proj":
            values = rotate_blocks(values.T, self._head).T
        elif kind == "o_proj":
            values = rotate_blocks(values, self._head)
        elif kind == "down_proj":
            values = rotate_blocks(values, self.block)
        if kind in ("o_proj", "down_proj"):  # they add to the hidden states
            return self._rotate(values.T).T
        return self._rotate(values)

    def _norm_before(self, part: str, kind: str) -> str | None:
        """Return the norm that is read by a matrix of a part of a layer."""
        if kind == "lm_head":
            return "model.norm.weight"
        if kind not in _NORMS:
            return None
        return f"{part.rpartition('.')[0]}.{_NORMS[kind]}.weight"

    def _rotate(self, values: WeightArray) -> WeightArray:
        """Multiply the last axis by the Kronecker product of two orthogonal matrices."""
        blocks = rotate_blocks(values, self._narrow)
        blocks = blocks.reshape(*values.shape[:-1], len(self._wide), -1)
        return (self._wide @ blocks).reshape(values.shape)
