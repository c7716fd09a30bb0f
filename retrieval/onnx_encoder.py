"""BERT encoders on a CPU by ONNX Runtime, without torch: the same vectors in float32, in less time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfrag.common.errors import UserError
from selfrag.common.onnx_files import GraphWriter, first_line, open_session
from selfrag.common.reading import read_json
from selfrag.common.tensor_files import TensorFiles


def bert_config(directory: Path) -> dict[str, Any] | None:
    """Return the configuration of a BERT encoder whose files this module can use; None for anything else."""
    config = read_json(directory / "config.json")
    is_bert = (
        isinstance(config, dict)
        and config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
    )
    has_files = (directory / "model.safetensors").is_file()
    return config if is_bert and has_files else None


class BertRunner:
    """Computes the token vectors of texts.

    Args:
        directory: of the encoder.
        config: what `bert_config` gives for it.

    Raises:
        UserError: weights are missing.

    Attributes:
        parameters: the weights; they may be cleared.
        cores: how many runs are fast at once.
    """

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        self.parameters: dict[str, NDArray[np.float32]] = {}
        with TensorFiles(directory) as files:
            for name in files:
                place = name.removeprefix("bert.")
                is_used = place.startswith(("embeddings.", "encoder."))
                if is_used and not place.endswith("position_ids"):
                    self.parameters[place] = files.float32(name)
        graph = GraphWriter()
        try:
            self._write(graph, config)
        except KeyError as error:
            raise UserError(
                f"{directory} lacks weights ({error.args[0]}); fetch it again"
            ) from error
        # Each run has one thread: of many batches each has a core.
        self._session = open_session(graph.finish(), 1, graph.weights)
        self.cores = os.cpu_count() or 1

    def run(self, ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> Any:
        """Return the vectors [n, width, dim] of the tokens of texts; `ids` [n, width] are padded behind `lengths`."""
        positions = np.arange(ids.shape[1])
        feeds = {"ids": ids, "positions": positions, "lengths": lengths}
        try:
            return self._session.run(None, feeds)[0]
        except Exception as error:  # of many types of its own
            raise UserError(
                f"the encoder failed on {ids.shape[0]} x {ids.shape[1]} tokens: {first_line(error)}"
            ) from error

    def _write(self, graph: GraphWriter, config: dict[str, Any]) -> None:
        weights = self.parameters
        epsilon = float(config["layer_norm_eps"])
        layers = int(config["num_hidden_layers"])
        heads = int(config["num_attention_heads"])
        dim = int(config["hidden_size"])
        graph.input("ids", "int64", ["n", "width"])
        graph.input("positions", "int64", ["width"])
        graph.input("lengths", "int32", ["n"])
        graph.output(f"hidden_{layers}", "float32", ["n", "width", dim])

        def stored(name: str) -> str:
            return graph.constant(name, weights[name])

        def product(source: str, name: str, target: str) -> None:
            matrix = graph.constant(f"{name}.weight", weights[f"{name}.weight"].T)
            graph.node("MatMul", [source, matrix], target)

        def add_and_norm(source: str, skip: str, layer: str, target: str) -> None:
            norm = f"{layer}.LayerNorm"
            inputs = [source, skip, stored(f"{norm}.weight"), stored(f"{norm}.bias")]
            inputs.append(stored(f"{layer}.dense.bias"))
            graph.node(
                "SkipLayerNormalization", inputs, target, epsilon=epsilon, contrib=True
            )

        # every text is of the first type
        places = weights["embeddings.position_embeddings.weight"]
        places = places + weights["embeddings.token_type_embeddings.weight"][0]
        graph.constant("places", places)
        words = stored("embeddings.word_embeddings.weight")
        graph.node("Gather", [words, "ids"], "words")
        graph.node("Gather", ["places", "positions"], "place")
        graph.node("Add", ["words", "place"], "embedded")
        norm = [stored(f"embeddings.LayerNorm.{part}") for part in ("weight", "bias")]
        graph.node(
            "LayerNormalization", ["embedded", *norm], "hidden_0", epsilon=epsilon
        )
        for layer in range(layers):
            prefix = f"encoder.layer.{layer}"
            parts = [
                f"{prefix}.attention.self.{name}" for name in ("query", "key", "value")
            ]
            matrix = np.concatenate([weights[f"{part}.weight"] for part in parts])
            bias = np.concatenate([weights[f"{part}.bias"] for part in parts])
            hidden = f"hidden_{layer}"
            inputs = [hidden, graph.constant(f"qkv_{layer}", matrix.T)]
            inputs += [graph.constant(f"qkv_bias_{layer}", bias), "lengths"]
            attended = f"attended_{layer}"
            graph.node("Attention", inputs, attended, num_heads=heads, contrib=True)
            output = f"{prefix}.attention.output"
            product(attended, f"{output}.dense", f"mixed_{layer}")
            add_and_norm(f"mixed_{layer}", hidden, output, f"middle_{layer}")
            wide = f"{prefix}.intermediate.dense"
            product(f"middle_{layer}", wide, f"wide_{layer}")
            inputs = [f"wide_{layer}", stored(f"{wide}.bias")]
            graph.node("BiasGelu", inputs, f"active_{layer}", contrib=True)
            output = f"{prefix}.output"
            product(f"active_{layer}", f"{output}.dense", f"narrow_{layer}")
            end = f"hidden_{layer + 1}"
            add_and_norm(f"narrow_{layer}", f"middle_{layer}", output, end)


def pool_tokens(
    hidden: NDArray[np.float32],
    lengths: NDArray[np.int32],
    pooling: str,
    normalize: bool,
) -> NDArray[np.float32]:
    """Return one vector [n, dim] a text, of the vectors [n, width, dim] of its first `lengths` tokens."""
    if pooling == "cls":
        pooled = hidden[:, 0]
    else:
        mask = np.arange(hidden.shape[1]) < lengths[:, None]
        pooled = np.einsum("nwd,nw->nd", hidden, mask.astype(np.float32))
        pooled /= lengths[:, None]
    if normalize:
        pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True).clip(1e-12)
    return np.ascontiguousarray(pooled, np.float32)
