"""The graph of a Llama-like model for ONNX Runtime, with its weights beside it.

Inputs: `ids` int64 [rows, tokens]; `last` int32 [rows], the index of each row's last token in its sequence; `total`
int32 [], the largest of them plus one; `pick` int64 [n], which tokens of all rows are asked for; for each layer
`key_i` and `value_i` [rows, heads of keys, room, head size], which a pass fills in place.
Output: `logprobs` [n, vocabulary].

A pass takes one row with any number of tokens behind what it has, or many rows with one token each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from selfrag.extensions.onnx.checkpoint import DecoderFacts, rotary_table
from selfrag.interface import GraphWriter, TensorFiles

BLOCK = 32
"""Numbers of a row of a matrix that share a scale in int8."""

Numbers = Literal["float32", "int8"]


def write_graph(
    facts: DecoderFacts, weights: TensorFiles, folder: Path, numbers: Numbers
) -> None:
    """Write the graph and its weights into a folder."""
    _DecoderGraph(facts, weights, GraphWriter(folder), numbers).write()


class _DecoderGraph:
    """Writes nodes and weights, in the order of the computation."""

    def __init__(
        self,
        facts: DecoderFacts,
        weights: TensorFiles,
        graph: GraphWriter,
        numbers: Numbers,
    ) -> None:
        self._facts = facts
        self._weights = weights
        self._graph = graph
        self._numbers = numbers

    def write(self) -> None:
        """Write the whole model."""
        facts = self._facts
        graph = self._graph
        graph.input("ids", "int64", ["rows", "tokens"])
        graph.input("last", "int32", ["rows"])
        graph.input("total", "int32", [])
        graph.input("pick", "int64", ["n"])
        graph.output("logprobs", "float32", ["n", facts.vocab_size])
        embedding = self._weights.float32("model.embed_tokens.weight")
        cosines, sines = rotary_table(facts)
        graph.constant("cosines", cosines)
        graph.constant("sines", sines)
        graph.constant("embedding", embedding)
        graph.node("Gather", ["embedding", "ids"], "hidden_0")
        for layer in range(facts.layers):
            self._layer(layer)
        self._output(embedding)
        graph.finish()

    def _layer(self, layer: int) -> None:
        facts = self._facts
        prefix = f"model.layers.{layer}."
        hidden, end = f"hidden_{layer}", f"hidden_{layer + 1}"
        self._norm(hidden, prefix + "input_layernorm.weight", f"normed_{layer}")
        self._attention_inputs(prefix, layer)
        shape: list[str | int] = ["rows", facts.kv_heads, "room", facts.head_size]
        for name in ("key", "value"):
            self._graph.input(f"{name}_{layer}", "float32", shape)
            self._graph.output(f"new_{name}_{layer}", "float32", shape)
        self._graph.node(
            "GroupQueryAttention",
            [
                f"qkv_{layer}",
                "",
                "",
                f"key_{layer}",
                f"value_{layer}",
                "last",
                "total",
                "cosines",
                "sines",
            ],
            f"attended_{layer}",
            f"new_key_{layer}",
            f"new_value_{layer}",
            num_heads=facts.heads,
            kv_num_heads=facts.kv_heads,
            do_rotary=1,
            contrib=True,
        )
        self._linear(
            f"attended_{layer}",
            self._weights.float32(prefix + "self_attn.o_proj.weight"),
            f"mixed_{layer}",
        )
        self._graph.node(
            "SkipSimplifiedLayerNormalization",
            [
                hidden,
                f"mixed_{layer}",
                self._stored(prefix + "post_attention_layernorm.weight"),
            ],
            f"middle_{layer}",
            "",
            "",
            f"residual_{layer}",
            epsilon=facts.epsilon,
            contrib=True,
        )
        for name in ("gate", "up"):
            weight = self._weights.float32(prefix + f"mlp.{name}_proj.weight")
            self._linear(f"middle_{layer}", weight, f"{name}_{layer}")
        self._graph.node(
            "QuickGelu", [f"gate_{layer}"], f"gated_{layer}", alpha=1.0, contrib=True
        )
        self._graph.node("Mul", [f"gated_{layer}", f"up_{layer}"], f"product_{layer}")
        self._linear(
            f"product_{layer}",
            self._weights.float32(prefix + "mlp.down_proj.weight"),
            f"down_{layer}",
        )
        self._graph.node("Add", [f"residual_{layer}", f"down_{layer}"], end)

    def _attention_inputs(self, prefix: str, layer: int) -> None:
        """Compute queries, keys and values by one matrix."""
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        matrices = [self._weights.float32(f"{name}.weight") for name in names]
        biases = [
            self._weights.float32(f"{name}.bias")
            for name in names
            if f"{name}.bias" in self._weights
        ]
        target = f"unbiased_{layer}" if biases else f"qkv_{layer}"
        self._linear(f"normed_{layer}", np.concatenate(matrices), target)
        if biases:
            bias = self._graph.constant(f"bias_{layer}", np.concatenate(biases))
            self._graph.node("Add", [target, bias], f"qkv_{layer}")

    def _output(self, embedding: NDArray[np.float32]) -> None:
        """Compute the log-probabilities behind the tokens that are asked for."""
        facts = self._facts
        width = np.array([-1, embedding.shape[1]], dtype=np.int64)
        self._graph.node(
            "Reshape",
            [f"hidden_{facts.layers}", self._graph.constant("width", width)],
            "tokens",
        )
        self._graph.node("Gather", ["tokens", "pick"], "picked")
        self._norm("picked", "model.norm.weight", "final")
        if not facts.tied:
            self._linear("final", self._weights.float32("lm_head.weight"), "logits")
        elif self._numbers == "int8":
            self._linear("final", embedding, "logits")
        else:
            self._graph.node("Gemm", ["final", "embedding"], "logits", transB=1)
        self._graph.node("LogSoftmax", ["logits"], "logprobs", axis=-1)

    def _norm(self, source: str, weight: str, target: str) -> None:
        self._graph.node(
            "SimplifiedLayerNormalization",
            [source, self._stored(weight)],
            target,
            axis=-1,
            epsilon=self._facts.epsilon,
        )

    def _linear(self, source: str, matrix: NDArray[np.float32], target: str) -> None:
        """Multiply by a matrix [new width, width]; what does not divide into blocks stays in float32."""
        columns, width = matrix.shape
        if self._numbers == "float32" or width % BLOCK:
            weight = self._graph.constant(f"{target}_weight", matrix.T)
            self._graph.node("MatMul", [source, weight], target)
            return
        codes, scales = to_int8(matrix)
        self._graph.node(
            "MatMulNBits",
            [
                source,
                self._graph.constant(f"{target}_codes", codes),
                self._graph.constant(f"{target}_scales", scales),
            ],
            target,
            K=width,
            N=columns,
            bits=8,
            block_size=BLOCK,
            accuracy_level=4,  # the inputs in int8, too
            contrib=True,
        )

    def _stored(self, name: str) -> str:
        return self._graph.constant(name, self._weights.float32(name))


def to_int8(
    matrix: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return codes around 128, [rows, blocks, BLOCK], and a scale for each block of a row, [rows * blocks]."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    codes = np.rint(blocks / scales) + 128
    return codes.astype(np.uint8), scales.reshape(-1)
