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

from selfrag.extensions.onnx.checkpoint import DecoderFacts, WeightArray, rotary_table
from selfrag.extensions.onnx.rotation import EMBEDDING, RotatedWeights
from selfrag.interface import GraphWriter, TensorFiles, open_session

Numbers = Literal["float32", "int8"]


def write_graph(
    facts: DecoderFacts, weights: TensorFiles, folder: Path, numbers: Numbers
) -> None:
    """Write the graph and its weights into a folder."""
    _DecoderGraph(facts, weights, GraphWriter(folder), numbers).write()


class _DecoderGraph:
    """Writes nodes and weights, in the order of the computation.

    In int8 a matrix has a scale for each of its rows, and its input one for each token, so that a token has the same
    numbers in every batch.
    """

    def __init__(
        self,
        facts: DecoderFacts,
        weights: TensorFiles,
        graph: GraphWriter,
        numbers: Numbers,
    ) -> None:
        self._facts = facts
        self._graph = graph
        self._rotated = RotatedWeights(facts, weights) if numbers == "int8" else None
        self._weights = self._rotated or weights
        self._has_head_norms = "model.layers.0.self_attn.q_norm.weight" in weights
        self._quantised: set[str] = set()
        self._largest_code = largest_code() if self._rotated else 0

    def write(self) -> None:
        """Write the whole model."""
        facts = self._facts
        graph = self._graph
        graph.input("ids", "int64", ["rows", "tokens"])
        graph.input("last", "int32", ["rows"])
        graph.input("total", "int32", [])
        graph.input("pick", "int64", ["n"])
        graph.output("logprobs", "float32", ["n", facts.vocab_size])
        embedding = self._weights.float32(EMBEDDING)
        cosines, sines = rotary_table(facts)
        graph.constant("cosines", cosines)
        graph.constant("sines", sines)
        graph.constant("embedding", embedding)
        if self._rotated is not None:
            graph.constant("unit", np.array(1 / 127, np.float32))
            graph.constant("zero", np.array(128, np.uint8))
            graph.constant("axis", np.array([-1]))
            graph.constant("tiny", np.array(1e-30, np.float32))
            block = self._rotated.block
            graph.constant("block", block)
            graph.constant("blocks", np.array([0, 0, -1, len(block)]))
        if self._rotated is not None or self._has_head_norms:
            graph.constant("channels", np.array([0, 0, -1]))
        if self._has_head_norms:
            sizes = [facts.heads, facts.kv_heads, facts.kv_heads]
            graph.constant("sizes", np.array(sizes) * facts.head_size)
            graph.constant("heads", np.array([0, 0, -1, facts.head_size]))
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
        sources = self._attention_inputs(prefix, layer)
        shape: list[str | int] = ["rows", facts.kv_heads, "room", facts.head_size]
        for name in ("key", "value"):
            self._graph.input(f"{name}_{layer}", "float32", shape)
            self._graph.output(f"new_{name}_{layer}", "float32", shape)
        self._graph.node(
            "GroupQueryAttention",
            [
                *sources,
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
        product = self._rotate_product(f"product_{layer}")
        self._linear(
            product,
            self._weights.float32(prefix + "mlp.down_proj.weight"),
            f"down_{layer}",
        )
        self._graph.node("Add", [f"residual_{layer}", f"down_{layer}"], end)

    def _rotate_product(self, source: str) -> str:
        """Rotate the input of `down_proj`, as its weights are rotated; in float32 nothing is."""
        if self._rotated is None:
            return source
        graph, target = self._graph, f"rotated_{source}"
        graph.node("Reshape", [source, "blocks"], f"{source}_blocks")
        graph.node("MatMul", [f"{source}_blocks", "block"], f"{source}_turned")
        graph.node("Reshape", [f"{source}_turned", "channels"], target)
        return target

    def _attention_inputs(self, prefix: str, layer: int) -> list[str]:
        """Compute queries, keys and values by one matrix; they stay together in a model without norms of heads."""
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
        if not self._has_head_norms:
            return [f"qkv_{layer}", "", ""]
        parts = [f"{part}_{layer}" for part in "qkv"]
        self._graph.node("Split", [f"qkv_{layer}", "sizes"], *parts, axis=-1)
        for part in "qk":
            name, weight = f"{part}_{layer}", f"{prefix}self_attn.{part}_norm.weight"
            self._graph.node("Reshape", [name, "heads"], f"{name}_heads")
            self._norm(f"{name}_heads", weight, f"{name}_normed")
            self._graph.node("Reshape", [f"{name}_normed", "channels"], f"{name}_even")
        return [f"q_{layer}_even", f"k_{layer}_even", f"v_{layer}"]

    def _output(self, embedding: WeightArray) -> None:
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
        if facts.tied and self._rotated is None:
            self._graph.node("Gemm", ["final", "embedding"], "logits", transB=1)
        else:
            self._linear("final", self._weights.float32("lm_head.weight"), "logits")
        self._graph.node("LogSoftmax", ["logits"], "logprobs", axis=-1)

    def _norm(self, source: str, weight: str, target: str) -> None:
        self._graph.node(
            "SimplifiedLayerNormalization",
            [source, self._stored(weight)],
            target,
            axis=-1,
            epsilon=self._facts.epsilon,
        )

    def _linear(self, source: str, matrix: WeightArray, target: str) -> None:
        """Multiply by a matrix [new width, width]."""
        graph = self._graph
        if self._rotated is None:
            weight = graph.constant(f"{target}_weight", matrix.T)
            graph.node("MatMul", [source, weight], target)
            return
        self._quantise(source)
        codes, scales = to_int8(matrix, self._largest_code)
        inputs = [
            f"{source}_codes",
            graph.constant(f"{target}_matrix", codes.T),
            "unit",
            graph.constant(f"{target}_scales", scales),
            "zero",
        ]
        graph.node("MatMulIntegerToFloat", inputs, f"{target}_units", contrib=True)
        graph.node("Mul", [f"{target}_units", f"{source}_largest"], target)

    def _quantise(self, source: str) -> None:
        """Divide each token by its largest number, and write it in steps of 1/127."""
        if source in self._quantised:
            return
        self._quantised.add(source)
        graph, largest = self._graph, f"{source}_largest"
        graph.node("Abs", [source], f"{source}_sizes")
        graph.node("ReduceMax", [f"{source}_sizes", "axis"], f"{source}_most")
        graph.node("Max", [f"{source}_most", "tiny"], largest)
        graph.node("Div", [source, largest], f"{source}_divided")
        graph.node(
            "QuantizeLinear", [f"{source}_divided", "unit", "zero"], f"{source}_codes"
        )

    def _stored(self, name: str) -> str:
        return self._graph.constant(name, self._weights.float32(name))


def to_int8(matrix: WeightArray, largest: int) -> tuple[NDArray[np.int8], WeightArray]:
    """Return codes up to the largest one, [rows, width], and a scale for each row."""
    most = np.abs(matrix).max(axis=1)
    scales = np.where(most > 0, most / largest, 1).astype(np.float32)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def largest_code() -> int:
    """Return 127; 64 on a processor that cuts sums of two products at 16 bits, as those with AVX2 and no VNNI."""
    graph = GraphWriter()
    graph.input("a", "uint8", [1, 64])
    graph.input("b", "int8", [64, 16])
    graph.output("sums", "int32", [1, 16])
    graph.node("MatMulInteger", ["a", "b"], "sums")
    session = open_session(graph.finish(), 1)
    a, b = np.full((1, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    (sums,) = session.run(None, {"a": a, "b": b})
    return 127 if (sums == 64 * 255 * 127).all() else 64
