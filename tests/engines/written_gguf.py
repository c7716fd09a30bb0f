"""GGUF files of checkpoints, as llama.cpp would write them."""

import gguf
import numpy as np
from json_files import read_json

from selfrag.common.tensor_files import TensorFiles

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
KINDS = gguf.GGMLQuantizationType


def gguf_name(name):
    base, kind = name.rsplit(".", 1)
    if base in NAMES:
        return f"{NAMES[base]}.{kind}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def turned(matrix, heads):
    """The rows of each head as llama.cpp has them: those of both halves in turn."""
    halves = matrix.reshape(heads, 2, -1, *matrix.shape[1:])
    return halves.swapaxes(1, 2).reshape(matrix.shape)


def write_gguf(checkpoint, path, kind=KINDS.F32, **changes):
    """Write a checkpoint of a Llama as llama.cpp would; `changes` are further texts, with __ for a dot."""
    config = read_json(checkpoint / "config.json")
    family = config["model_type"]
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_vocabulary(writer, read_json(checkpoint / "tokenizer.json"))
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    template = checkpoint / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text())
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", divisors(config["head_dim"], rope))
    for name, value in changes.items():
        writer.add_string(name.replace("__", "."), value)
    with TensorFiles(checkpoint) as files:
        for name in files:
            values = files.float32(name)
            for part in ("attention", "key_value"):
                if family == "llama" and name.endswith(
                    f"{'qk'[part == 'key_value']}_proj.weight"
                ):
                    values = turned(values, config[f"num_{part}_heads"])
            stored = kind if values.ndim == 2 else KINDS.F32
            writer.add_tensor(
                gguf_name(name),
                gguf.quants.quantize(np.ascontiguousarray(values), stored),
                raw_dtype=stored,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def divisors(size, rope):
    """What llama.cpp divides rotary frequencies by, after its own conversion script."""
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    values = []
    for index in range(0, size, 2):
        length = 2 * np.pi * rope["rope_theta"] ** (index / size)
        if length < context / high:
            values.append(1)
        elif length > context / low:
            values.append(rope["factor"])
        else:
            smooth = (context / length - low) / (high - low)
            values.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(values, np.float32)


def add_vocabulary(writer, tokenizer):
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"] | {
        token["content"]: token_id for token_id, token in added.items()
    }
    tokens = sorted(vocabulary, key=vocabulary.get)
    is_spaced = tokenizer["model"]["byte_fallback"]
    writer.add_tokenizer_model("llama" if is_spaced else "gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in added else 1 for i in range(len(tokens))])
    merges = ["".join(pair) for pair in tokenizer["model"]["merges"]]
    if is_spaced:
        writer.add_token_scores(
            [-float(merges.index(t)) if t in merges else -1e6 for t in tokens]
        )
    else:
        writer.add_token_merges([" ".join(p) for p in tokenizer["model"]["merges"]])
