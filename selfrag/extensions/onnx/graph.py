"""The graph of a Llama-like model for ONNX Runtime, with its weights beside it.

Inputs: `ids` int64 [rows, tokens]; `last` int32 [rows], the index of each row's last token in its sequence; `total`
int32 [], the largest of them plus one; `pick` int64 [n], which tokens of all rows are asked for; for each layer
`key_i` and `value_i` [rows, heads of keys, room, head size], which a pass fills in place.
Output: `logprobs` [n, vocabulary].

A pass takes one row with any number of tokens behind what it has, or many rows with one token each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selfrag.extensions.onnx.checkpoint import DecoderFacts, TensorFiles, rotary_table

GRAPH = "model.onnx"
DATA = "model.onnx.data"
BLOCK = 32
"""Numbers of a row of a matrix that share a scale in int8."""

Numbers = Literal["float32", "int8"]


def write_graph(
    facts: DecoderFacts, weights: TensorFiles, folder: Path, numbers: Numbers
) -> None:
    """Write `model.onnx` and its weights into a folder."""
    import onnx

    model = _Graph(facts, weights, numbers).model()
    onnx.save_model(
        model,
        folder / GRAPH,
        save_as_external_data=True,
        location=DATA,
        size_threshold=1024,
    )


class _Graph:
    """Collects nodes and weights, in the order of the computation."""

    def __init__(
        self, facts: DecoderFacts, weights: TensorFiles, numbers: Numbers
    ) -> None:
        self._facts = facts
        self._weights = weights
        self._numbers = numbers
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._caches: list[Any] = []
        self._filled: list[Any] = []

    def model(self) -> Any:
        """Return the whole model."""
        from onnx import TensorProto, helper

        facts = self._facts
        embedding = self._weights["model.embed_tokens.weight"]
        cosines, sines = rotary_table(facts)
        self._constant("cosines", cosines)
        self._constant("sines", sines)
        self._node(
            "Gather", [self._constant("embedding", embedding), "ids"], "hidden_0"
        )
        for layer in range(facts.layers):
            self._layer(layer)
        self._output(embedding)
        inputs = [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows", "tokens"]),
            helper.make_tensor_value_info("last", TensorProto.INT32, ["rows"]),
            helper.make_tensor_value_info("total", TensorProto.INT32, []),
            helper.make_tensor_value_info("pick", TensorProto.INT64, ["n"]),
        ]
        logprobs = helper.make_tensor_value_info(
            "logprobs", TensorProto.FLOAT, ["n", facts.vocab_size]
        )
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            inputs + self._caches,
            [logprobs, *self._filled],
            self._constants,
        )
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=versions, ir_version=10)

    def _layer(self, layer: int) -> None:
        facts = self._facts
        prefix = f"model.layers.{layer}."
        hidden, end = f"hidden_{layer}", f"hidden_{layer + 1}"
        self._norm(hidden, prefix + "input_layernorm.weight", f"normed_{layer}")
        self._attention_inputs(prefix, layer)
        self._caches += self._cache_values(layer, "key", "value")
        self._filled += self._cache_values(layer, "new_key", "new_value")
        self._node(
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
        )
        self._linear(
            f"attended_{layer}",
            self._weights[prefix + "self_attn.o_proj.weight"],
            f"mixed_{layer}",
        )
        self._node(
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
        )
        for name in ("gate", "up"):
            weight = self._weights[prefix + f"mlp.{name}_proj.weight"]
            self._linear(f"middle_{layer}", weight, f"{name}_{layer}")
        self._node("QuickGelu", [f"gate_{layer}"], f"gated_{layer}", alpha=1.0)
        self._node("Mul", [f"gated_{layer}", f"up_{layer}"], f"product_{layer}")
        self._linear(
            f"product_{layer}",
            self._weights[prefix + "mlp.down_proj.weight"],
            f"down_{layer}",
        )
        self._node("Add", [f"residual_{layer}", f"down_{layer}"], end)

    def _attention_inputs(self, prefix: str, layer: int) -> None:
        """Compute queries, keys and values by one matrix."""
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        matrices = [self._weights[f"{name}.weight"] for name in names]
        biases = [
            self._weights[f"{name}.bias"]
            for name in names
            if f"{name}.bias" in self._weights
        ]
        target = f"unbiased_{layer}" if biases else f"qkv_{layer}"
        self._linear(f"normed_{layer}", np.concatenate(matrices), target)
        if biases:
            bias = self._constant(f"bias_{layer}", np.concatenate(biases))
            self._node("Add", [target, bias], f"qkv_{layer}")

    def _output(self, embedding: NDArray[np.float32]) -> None:
        """Compute the log-probabilities behind the tokens that are asked for."""
        facts = self._facts
        width = np.array([-1, embedding.shape[1]], dtype=np.int64)
        self._node(
            "Reshape",
            [f"hidden_{facts.layers}", self._constant("width", width)],
            "tokens",
        )
        self._node("Gather", ["tokens", "pick"], "picked")
        self._norm("picked", "model.norm.weight", "final")
        if not facts.tied:
            self._linear("final", self._weights["lm_head.weight"], "logits")
        elif self._numbers == "int8":
            self._linear("final", embedding, "logits")
        else:
            self._node("Gemm", ["final", "embedding"], "logits", transB=1)
        self._node("LogSoftmax", ["logits"], "logprobs", axis=-1)

    def _norm(self, source: str, weight: str, target: str) -> None:
        self._node(
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
            weight = self._constant(f"{target}_weight", matrix.T)
            self._node("MatMul", [source, weight], target)
            return
        codes, scales = to_int8(matrix)
        self._node(
            "MatMulNBits",
            [
                source,
                self._constant(f"{target}_codes", codes),
                self._constant(f"{target}_scales", scales),
            ],
            target,
            K=width,
            N=columns,
            bits=8,
            block_size=BLOCK,
            accuracy_level=4,  # the inputs in int8, too
        )

    def _cache_values(self, layer: int, *names: str) -> list[Any]:
        from onnx import TensorProto, helper

        facts = self._facts
        shape: list[str | int] = ["rows", facts.kv_heads, "room", facts.head_size]
        return [
            helper.make_tensor_value_info(f"{name}_{layer}", TensorProto.FLOAT, shape)
            for name in names
        ]

    def _stored(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _constant(self, name: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._constants.append(
            numpy_helper.from_array(np.ascontiguousarray(values), name)
        )
        return name

    def _node(
        self, kind: str, inputs: list[str], *outputs: str, **attributes: Any
    ) -> None:
        from onnx import helper

        domain = CONTRIB if kind in CONTRIBUTED else ""
        self._nodes.append(
            helper.make_node(kind, inputs, list(outputs), domain=domain, **attributes)
        )


CONTRIB = "com.microsoft"
CONTRIBUTED = (
    "GroupQueryAttention",
    "MatMulNBits",
    "QuickGelu",
    "SkipSimplifiedLayerNormalization",
)
"""Operators of ONNX Runtime beside the standard's."""


def to_int8(
    matrix: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return codes around 128, [rows, blocks, BLOCK], and a scale for each block of a row, [rows * blocks]."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    codes = np.rint(blocks / scales) + 128
    return codes.astype(np.uint8), scales.reshape(-1)
