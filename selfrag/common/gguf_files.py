"""GGUF files of Llama-like models: converted to a checkpoint with plain weights, without torch and transformers."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from selfrag.common.atomic import write_json, write_text
from selfrag.common.errors import UserError
from selfrag.common.tensor_files import BFLOAT16, write_tensors

_NUMBERS = dict(zip(range(13), "BbHhIif?__Qqd", strict=True))
"""Formats of `struct` by GGUF's types of values."""
_TEXT, _ARRAY = 8, 9
_MOST = 2**28
"""Most entries of an array or bytes of a text; a damaged file states any number."""
_DAMAGES = (
    struct.error,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    MemoryError,
    RecursionError,
    NotImplementedError,  # of a quantisation that the package gguf cannot undo
)
"""What reading raises where a file holds something else than it states."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where the numbers of one tensor are."""

    shape: tuple[int, ...]
    kind: int  # of quantisation
    offset: int  # in the file


@dataclass(slots=True)
class GGUFFile:
    """The metadata of a GGUF file, and its tensors."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, _Tensor] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Read the metadata of a file.

        Raises:
            UserError: it is missing, damaged, or no GGUF file.
        """
        if not path.is_file():
            raise UserError(f"no GGUF file at {path}")
        file = cls(path)
        with path.open("rb") as source:
            magic = source.read(4)
            if magic != b"GGUF":
                raise UserError(
                    f"{path} is not a GGUF file (it starts with {magic!r}); download it again"
                )
            try:
                file._read(source)
            except _DAMAGES as error:
                raise file.damaged(error) from error
        return file

    def damaged(self, error: Exception) -> UserError:
        """Return what to say of a file that holds something else than it states."""
        reason = " ".join(str(error).split())[:200]
        return UserError(f"{self.path} cannot be read ({reason}); download it again")

    def _read(self, source: BinaryIO) -> None:
        version, tensors, entries = _unpack(source, "<IQQ")
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        for _ in range(entries):
            name = _text(source)
            (kind,) = _unpack(source, "<I")
            self.metadata[name] = _value(source, kind)
        places = []
        for _ in range(tensors):
            name = _text(source)
            (dimensions,) = _unpack(source, "<I")
            if dimensions > 4:
                raise ValueError(f"{name[:40]!r} has {dimensions} dimensions")
            shape = _unpack(source, f"<{dimensions}Q")
            places.append((name, shape[::-1], *_unpack(source, "<IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-source.tell() // alignment) * alignment
        for name, shape, kind, offset in places:
            self.tensors[name] = _Tensor(shape, kind, start + offset)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32."""
        import gguf as quants

        place = self.tensors[name]
        try:
            kind = quants.GGMLQuantizationType(place.kind)
            block, size = quants.GGML_QUANT_SIZES[kind]
            packed = np.fromfile(
                self.path,
                np.uint8,
                math.prod(place.shape) // block * size,
                offset=place.offset,
            )
            values: NDArray[np.float32] = quants.dequantize(packed, kind)
            return values.reshape(place.shape).astype(np.float32)
        except _DAMAGES as error:
            raise self.damaged(error) from error


def _unpack(source: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, source.read(struct.calcsize(form)))


def _text(source: BinaryIO) -> str:
    (length,) = _unpack(source, "<Q")
    return source.read(_checked(length)).decode("utf-8", "replace")


def _checked(count: int) -> int:
    if count > _MOST:
        raise ValueError(f"it states {count} entries")
    return count


def _value(source: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(source)
    if kind != _ARRAY:
        return _unpack(source, f"<{_NUMBERS[kind]}")[0]
    kind, count = _unpack(source, "<IQ")
    if kind in (_TEXT, _ARRAY):
        return [_value(source, kind) for _ in range(_checked(count))]
    return list(_unpack(source, f"<{_checked(count)}{_NUMBERS[kind]}"))


FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""Architectures of GGUF, which are the names of transformers' families as well, and its classes."""
_WEIGHTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")


def convert(path: Path, folder: Path) -> None:
    """Write a GGUF model into an empty folder as a checkpoint in bf16 with its tokenizer.

    The weights differ from the published model by the rounding of the GGUF file.

    Raises:
        UserError: the file is missing or damaged, or holds a model of another family.
    """
    file = GGUFFile.open(path)
    family = file.metadata.get("general.architecture")
    if family not in FAMILIES:
        raise UserError(
            f"{path} holds a model of {family!r:.40}; known: {', '.join(FAMILIES)}"
        )
    try:
        config = _config(file, family)
        tokenizer = _tokenizer(file.metadata)
        tokenizer_config = _tokenizer_config(file.metadata)
        weights = dict(_weights(file, config))
    except UserError:
        raise
    except Exception as error:  # the library of tokenizers raises nothing more special
        raise file.damaged(error) from error
    write_json(folder / "config.json", config)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        write_text(folder / "chat_template.jinja", template)
    write_tensors(weights, folder / "model.safetensors")


def _config(file: GGUFFile, family: str) -> dict[str, Any]:
    metadata = file.metadata

    def fact(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{name}", default)
        if value is None:
            raise KeyError(f"it states no {family}.{name}")
        return value

    heads = fact("attention.head_count")
    width = fact("embedding_length")
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": fact("rope.freq_base", 10_000.0),
    }
    if "rope_freqs.weight" in file.tensors or f"{family}.rope.scaling.type" in metadata:
        raise ValueError(
            "its rotary positions are scaled, and only plain ones are known"
        )
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "dtype": "bfloat16",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": fact("feed_forward_length"),
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fact("attention.head_count_kv", heads),
        "head_dim": fact("attention.key_length", width // heads),
        "max_position_embeddings": fact("context_length"),
        "rms_norm_eps": fact("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _weights(
    file: GGUFFile, config: Mapping[str, Any]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name in file.tensors:
        base, _, kind = name.rpartition(".")
        values = file.tensor(name)
        part = _IN_LAYER.fullmatch(base)
        target = _WEIGHTS.get(base)
        if part is not None and part[2] in _LAYER_WEIGHTS:
            target = f"model.layers.{part[1]}.{_LAYER_WEIGHTS[part[2]]}"
        if target is None:
            raise UserError(f"{file.path} holds the weights {name}, which are unknown")
        if config["model_type"] == "llama" and target.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads"]
            if target.endswith("k_proj"):
                heads = config["num_key_value_heads"]
            values = _halves_of_heads(values, heads)
        yield f"{target}.{kind}", values.astype(BFLOAT16)


def _halves_of_heads(matrix: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return the rows of each head as its two halves; GGUF has the rows of both in turn."""
    pairs = matrix.reshape(heads, -1, 2, *matrix.shape[1:])
    return pairs.swapaxes(1, 2).reshape(matrix.shape)


_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, key in _SPECIAL.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    return config


_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
    "deepseek-r1-qwen": _LLAMA3.replace("{1,3}", ""),
}
"""How texts are cut before merging, by the name in the file; others are cut as GPT-2 cuts them."""


def _tokenizer(metadata: Mapping[str, Any]) -> Any:
    """Return the tokenizer, as one of the library `tokenizers`."""
    from tokenizers import AddedToken, Tokenizer

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        core: Tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        core = _sentencepiece(metadata, tokens)
    else:
        raise ValueError(f"its tokenizer is {kind!r:.40}; known: gpt2, llama")
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    added = zip(tokens, kinds, strict=False)
    for token, token_kind in added:
        special = token_kind == _CONTROL
        if special or token_kind == _USER_DEFINED:
            add = core.add_special_tokens if special else core.add_tokens
            add([AddedToken(token, normalized=False, special=special)])
    return core


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(
        models.BPE(
            vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""
        )
    )
    split = _SPLITS.get(metadata.get("tokenizer.ggml.pre", ""))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split is not None:
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    core.decoder = decoders.ByteLevel()
    return core


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    """Return the tokenizer of a vocabulary of SentencePiece, whose merges follow from its scores."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {token: index for index, token in enumerate(tokens)}
    scores = metadata["tokenizer.ggml.scores"]
    merges: list[tuple[str, str]] = []
    for token in sorted(vocabulary, key=lambda token: -scores[vocabulary[token]]):
        parts = []
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                parts.append((left, right))
        merges += sorted(parts, key=lambda pair: tuple(map(vocabulary.get, pair)))
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    core = Tokenizer(
        models.BPE(
            vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    core.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme="first" if has_prefix else "never", split=False
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    if metadata.get("tokenizer.ggml.add_bos_token", True):
        bos_id = metadata["tokenizer.ggml.bos_token_id"]
        core.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos_id]} $A", special_tokens=[(tokens[bos_id], bos_id)]
        )
    return core
