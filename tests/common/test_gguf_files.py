"""GGUF files become checkpoints: weights, configuration and tokenizer are those that the file was made of."""

import random
import shutil

import gguf
import numpy as np
import pytest
import tiny
from json_files import read_json
from refusals import refused
from transformers import AutoTokenizer

from selfrag.common.errors import UserError
from selfrag.common.gguf_files import GGUFFile, convert
from selfrag.common.tensor_files import TensorFiles
from selfrag.loading import load_tokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
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
    """Write a checkpoint of a tiny Llama as llama.cpp would."""
    config = read_json(checkpoint / "config.json")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_vocabulary(writer, read_json(checkpoint / "tokenizer.json"))
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template("{{ messages[0].content }}")
    for name, value in changes.items():
        writer.add_string(name.replace("__", "."), value)
    with TensorFiles(checkpoint) as files:
        for name in files:
            values = files.float32(name)
            for part in ("attention", "key_value"):
                if name.endswith(f"{'qk'[part == 'key_value']}_proj.weight"):
                    values = turned(values, config[f"num_{part}_heads"])
            packs = kind not in (KINDS.F32, KINDS.F16) and values.ndim == 2
            stored = kind if packs or kind is KINDS.F16 else KINDS.F32
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


@pytest.mark.parametrize(
    ("kind", "far"), [(KINDS.F32, 4e-3), (KINDS.F16, 4e-3), (KINDS.Q8_0, 1e-2), (KINDS.Q4_0, 0.15)]
)  # fmt: skip
def test_a_checkpoint_comes_back_from_its_gguf(tiny_llama, tmp_path, kind, far):
    convert(write_gguf(tiny_llama, tmp_path / "m.gguf", kind), tmp_path)
    config, expected = (read_json(p / "config.json") for p in (tmp_path, tiny_llama))
    for name in ("hidden_size", "vocab_size", "head_dim", "tie_word_embeddings"):
        assert config[name] == expected[name]
    with TensorFiles(tmp_path) as ours, TensorFiles(tiny_llama) as theirs:
        assert set(ours) == set(theirs)
        for name in ours:
            gap = np.abs(ours.float32(name) - theirs.float32(name)).max()
            assert gap <= far * np.abs(theirs.float32(name)).max(), name


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece"])
def test_the_tokenizer_is_that_of_the_checkpoint(family, tmp_path):
    tiny.save_llama(tmp_path / "a", family=family)
    (tmp_path / "b").mkdir()
    convert(write_gguf(tmp_path / "a", tmp_path / "m.gguf"), tmp_path / "b")
    expected = AutoTokenizer.from_pretrained(tmp_path / "a")
    ours = load_tokenizer(tmp_path / "b")
    assert ours.get_vocab() == expected.get_vocab()
    for text in [*tiny.SENTENCES, "  é 北京 \U0001f600", "a[Relevant]b"]:
        encoding = ours.backend_tokenizer.encode(text)
        assert encoding.ids == expected(text)["input_ids"]
        assert ours.backend_tokenizer.decode(encoding.ids) == expected.decode(
            encoding.ids, skip_special_tokens=True
        )
    assert ours.get_chat_template() == "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"no GGUF file at .*m\.gguf"),
        (b"<html>not found</html>", "is not a GGUF file"),
        (b"GGUF", "cannot be read"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "cannot be read"),
        (b"GGUF\x09\0\0\0" + bytes(16), "version 9"),
        (b"GGUF\x03\0\0\0" + bytes(16), "holds a model of None"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    with refused(said):
        convert(path, tmp_path)


def test_a_file_that_is_cut_or_unknown_is_refused_in_one_line(tiny_llama, tmp_path):
    path = write_gguf(tiny_llama, tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with refused("cannot be read"):
        convert(path, tmp_path)
    write_gguf(tiny_llama, path, llama__rope__scaling__type="yarn")
    with refused("rotary positions are scaled"):
        convert(path, tmp_path)
    assert GGUFFile.open(path).metadata["llama.rope.scaling.type"] == "yarn"


def test_a_file_with_other_bytes_is_converted_or_refused_in_one_line(
    tiny_llama, tmp_path
):
    """Each byte of the header may be anything: sizes, kinds, counts, texts."""
    content = write_gguf(tiny_llama, tmp_path / "m.gguf").read_bytes()
    draw = random.Random(0)
    lines = []
    for number in range(150):
        changed = bytearray(content)
        for _ in range(3):
            place = draw.randrange(4, draw.choice((600, 6_000, 60_000)))
            changed[place] = draw.randrange(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(changed)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            convert(path, folder)
        except UserError as error:
            lines.append(str(error))
        path.unlink()
        shutil.rmtree(folder)
    assert lines
    assert not any("\n" in line for line in lines)
