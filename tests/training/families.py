"""Tiny random base models of many families, without reflection tokens: tied and untied, windows, capped scores."""

from __future__ import annotations

from pathlib import Path

import tiny

FAMILIES = ["llama sentencepiece", "llama tied", "gpt2", "gpt2 untied", "mistral", "qwen2", "gemma2", "gemma3", "neox"]
"""Every kind that the tests train."""

MIXING = ["bloom", "gptj"]
"""Kinds whose own code would let packed rows see each other: one says nothing about it, one fails."""


def save_base(path: Path, family: str) -> Path:
    """Write the checkpoint of a family."""
    match family.split():
        case ["gpt2", *untied]:
            return tiny.save_gpt2(path, reflection=False, tie=not untied)
        case ["llama", "sentencepiece"]:
            return tiny.save_llama(path, family="sentencepiece", reflection=False)
        case ["llama", *tied]:
            return tiny.save_llama(path, reflection=False, tie=bool(tied))
        case ["bloom" | "gptj" | "mamba" as old]:
            return _save_old(path, old)
    import transformers

    spm = family in {"mistral", "gemma2", "gemma3"}
    tokenizer = (tiny.sentencepiece_tokenizer if spm else tiny.byte_level_tokenizer)(reflection=False)
    common = {
        "vocab_size": len(tokenizer) + (40 if family == "neox" else 0),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        "initializer_range": 0.2,
        "tie_word_embeddings": family in {"qwen2", "gemma2", "gemma3"},
        "dtype": "float32",
    }
    few_heads = {"num_key_value_heads": 1, "head_dim": 32}
    kind, config = {
        "mistral": ("MistralForCausalLM", lambda: transformers.MistralConfig(**common, **few_heads, sliding_window=24)),
        "qwen2": ("Qwen2ForCausalLM", lambda: transformers.Qwen2Config(**common, num_key_value_heads=1)),
        "gemma2": (
            "Gemma2ForCausalLM",
            lambda: transformers.Gemma2Config(
                **common, **few_heads, sliding_window=24, query_pre_attn_scalar=32, attn_logit_softcapping=5.0
            ),
        ),
        "gemma3": (
            "Gemma3ForCausalLM",
            lambda: transformers.Gemma3TextConfig(
                **common, **few_heads, sliding_window=24, layer_types=["sliding_attention", "full_attention"]
            ),
        ),
        "neox": ("GPTNeoXForCausalLM", lambda: transformers.GPTNeoXConfig(**common)),
    }[family]
    return tiny._save(getattr(transformers, kind), config(), tokenizer, path, 0)


def _save_old(path: Path, family: str) -> Path:
    """Families whose layers have their attention built in, or none."""
    import transformers

    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    common = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "initializer_range": 0.2}
    kind, config = {
        "bloom": ("BloomForCausalLM", lambda: transformers.BloomConfig(**common, hidden_size=64, n_layer=2, n_head=2)),
        "gptj": (
            "GPTJForCausalLM",
            lambda: transformers.GPTJConfig(**common, n_embd=64, n_layer=2, n_head=2, rotary_dim=16, n_positions=1024),
        ),
        "mamba": ("MambaForCausalLM", lambda: transformers.MambaConfig(**common, hidden_size=64, num_hidden_layers=2)),
    }[family]
    return tiny._save(getattr(transformers, kind), config(), tokenizer, path, 0)
