"""Tiny random base models of many families, without reflection tokens: tied and untied, windows, capped scores."""

import tiny
from json_files import parse_table

FAMILIES = (
    "llama sentencepiece|llama tied|gpt2|gpt2 untied|mistral|qwen2|gemma2|gemma3|neox"
).split("|")
"""Every kind that the tests train."""

MIXING = ["bloom", "gptj"]
"""Kinds whose own code would let packed rows see each other: one says nothing about it, one fails."""

_KINDS = {
    family: (name, own)
    for family, name, own in parse_table("""
mistral | Mistral | {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 24}
qwen2 | Qwen2 | {"num_key_value_heads": 1}
gemma2 | Gemma2 | {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 24,
    "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0}
gemma3 | Gemma3 | {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"]}
neox | GPTNeoX | {}
bloom | Bloom | {"n_layer": 2, "n_head": 2}
gptj | GPTJ | {"n_embd": 64, "n_layer": 2, "n_head": 2, "rotary_dim": 16, "n_positions": 1024}
mamba | Mamba | {}
""")
}
"""Layers of the last three have their attention built in, or none."""


def save_base(path, family):
    """Write the checkpoint of a family."""
    match family.split():
        case ["gpt2", *untied]:
            return tiny.save_gpt2(path, reflection=False, tie=not untied)
        case ["llama", "sentencepiece"]:
            return tiny.save_llama(path, family="sentencepiece", reflection=False)
        case ["llama", *tied]:
            return tiny.save_llama(path, reflection=False, tie=bool(tied))
    import transformers

    spm = family in {"mistral", "gemma2", "gemma3"}
    tokenizer = (tiny.sentencepiece_tokenizer if spm else tiny.byte_level_tokenizer)(
        reflection=False
    )
    name, own = _KINDS[family]
    common = {
        "vocab_size": len(tokenizer) + 40 * (family == "neox"),  # as Pythia has it
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
        "initializer_range": 0.2,
        "dtype": "float32",
    }
    if family != "gptj":
        common["hidden_size"] = 64
    if family not in {"bloom", "gptj"}:
        common["num_hidden_layers"] = 2
    if family not in {"bloom", "gptj", "mamba"}:
        common |= {"intermediate_size": 128, "num_attention_heads": 2}
        common["max_position_embeddings"] = 1024
        common["tie_word_embeddings"] = family in {"qwen2", "gemma2", "gemma3"}
    text = "Text" * (family == "gemma3")
    config = getattr(transformers, f"{name}{text}Config")(**common, **own)
    kind = getattr(transformers, f"{name}ForCausalLM")
    return tiny._save(kind, config, tokenizer, path, 0)
