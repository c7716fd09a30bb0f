"""Whether a checkpoint fits this machine: weights in free memory, its context in the cache for keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.pretrained import number_format, saved_format
from retrieval.reading import read_json
from selfrag.cli.checks.finding import Finding
from selfrag.cli.checks.machine import free_memory
from selfrag.engines.vllm_config import CPU_KV_CACHE_GIB, GIB
from selfrag.errors import UserError

_NUMBER_BYTES = 2  # of keys and values in 16 bits


def check_fit(folder: Path) -> Iterator[Finding]:
    """Sizes of a checkpoint on disk; says nothing of checkpoints whose configuration it cannot read."""
    held_in = number_format("auto", folder, "cpu").name
    wider = 2 if held_in == "float32" else 1  # than 16 bits
    rounded = saved_format(folder) in ("bfloat16", "float16")
    weights = sum(file.stat().st_size for file in _weight_files(folder)) * (wider if rounded else 1)
    free = free_memory()
    if free is not None:
        needed = weights + int(CPU_KV_CACHE_GIB * GIB)
        detail = f"weights {weights / GIB:.1f} GB and {CPU_KV_CACHE_GIB:g} GB of cache, {free / GIB:.1f} GB free"
        fix = "" if needed < free else "close other programs, use a GPU, or pass kv_cache_gib= with less"
        yield Finding("memory", detail, "note" if fix else "ok", fix)
    sizes = cache_sizes(folder)
    if sizes is not None:
        context, token = sizes
        token *= wider
        held = int(CPU_KV_CACHE_GIB * GIB) // token
        fix = "" if held >= context else f"pass kv_cache_gib={context * token / GIB:.1f} or max_model_len={held}"
        detail = f"{context:,} tokens; on a CPU the cache of {CPU_KV_CACHE_GIB:g} GB holds {held:,}"
        yield Finding("context", detail, "note" if fix else "ok", fix)


def cache_sizes(folder: Path) -> tuple[int, int] | None:
    """Context in tokens, and bytes of a token's keys and values in 16 bits; None if `config.json` does not say."""
    try:
        config: Any = read_json(folder / "config.json")
    except UserError:
        return None
    config = config.get("text_config", config) if isinstance(config, dict) else config
    if not isinstance(config, dict):
        return None

    def first(*names: str) -> int:
        return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), 0)

    context, layers = first("max_position_embeddings", "n_positions"), first("num_hidden_layers", "n_layer")
    heads, hidden = first("num_attention_heads", "n_head"), first("hidden_size", "n_embd")
    if not (context and layers and heads and hidden):
        return None
    width = first("head_dim") or hidden // heads
    return context, 2 * layers * (first("num_key_value_heads") or heads) * width * _NUMBER_BYTES


def _weight_files(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
