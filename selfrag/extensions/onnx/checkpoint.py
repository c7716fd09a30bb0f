"""The facts of a Llama-like checkpoint that `config.json` states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from selfrag.interface import EngineError, check_config, read_json

WeightArray: TypeAlias = NDArray[np.float32]
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` of models that the graph describes.

Biases of queries, keys and values, and norms of the heads of queries and keys, are optional.
"""


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """What the graph and the engine need to know of a model."""

    layers: int
    heads: int  # of queries
    kv_heads: int  # of keys and values
    head_size: int
    vocab_size: int
    context: int  # most tokens of a sequence
    epsilon: float  # of its norms
    rope_theta: float
    rope_scaling: tuple[tuple[str, float], ...]  # of the kind `llama3`; empty for none
    tied: bool  # whether the output layer is the embedding
    eos_ids: frozenset[int]


def read_facts(directory: Path) -> DecoderFacts:
    """Return the facts of a checkpoint.

    Raises:
        UserError: a model of another family, or a configuration that lacks something.
    """
    check_config(directory)
    config = _record(directory / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise EngineError(
            f"the onnx engine runs models of {', '.join(FAMILIES)}, and {directory} is {family!r:.40}; use --engine"
            " transformers"
        )
    if config.get("quantization_config"):
        raise EngineError(
            f"the onnx engine runs no quantised checkpoint ({directory}); use --engine vllm"
        )
    try:
        heads = int(config["num_attention_heads"])
        context = int(config["max_position_embeddings"])
        window = config.get("sliding_window")
        if window and config.get("use_sliding_window", True):
            context = min(context, int(window))
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        return DecoderFacts(
            int(config["num_hidden_layers"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or config["hidden_size"] // heads),
            int(config["vocab_size"]),
            context,
            float(config["rms_norm_eps"]),
            float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            _scaling(rope, directory),
            bool(config.get("tie_word_embeddings")),
            _eos(directory, config),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EngineError(
            f"{directory / 'config.json'} does not describe a model of {family}: {error}"
        ) from error


def _record(path: Path) -> Mapping[str, Any]:
    record = read_json(path)
    if not isinstance(record, dict):
        raise EngineError(f"{path} holds no object")
    return record


_LLAMA3 = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


def _scaling(rope: Mapping[str, Any], directory: Path) -> tuple[tuple[str, float], ...]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind != "llama3":
        raise EngineError(
            f"the onnx engine knows no rotary scaling {kind!r:.40} ({directory}); use --engine transformers"
        )
    return tuple((name, float(rope[name])) for name in _LLAMA3)


def _eos(directory: Path, config: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids that end a sequence, of all files that name them."""
    values = [config.get("eos_token_id")]
    generation = directory / "generation_config.json"
    if generation.is_file():
        values.append(_record(generation).get("eos_token_id"))
    ids: set[int] = set()
    for value in values:
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, int) and not isinstance(token_id, bool):
                ids.add(token_id)
    if not ids:
        raise EngineError(f"{directory} names no eos_token_id")
    return frozenset(ids)


def rotary_table(
    facts: DecoderFacts,
) -> tuple[WeightArray, WeightArray]:
    """Return the cosines and sines of all positions, each [context, head_size / 2]."""
    size = facts.head_size
    frequencies = facts.rope_theta ** -(np.arange(0, size, 2) / size)
    if facts.rope_scaling:
        scaling = dict(facts.rope_scaling)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = (
            scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        )
        # 1 keeps a frequency, 0 divides it; between the two bounds it is mixed
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling["factor"])
    angles = np.arange(facts.context)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
