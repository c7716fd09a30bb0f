"""GGUF files of Llama-like models: converted to a checkpoint with plain weights, without torch and transformers."""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from selfrag.common.atomic import write_json, write_text
from selfrag.common.cache import fingerprint, publish
from selfrag.common.errors import UserError
from selfrag.common.reading import cache_home
from selfrag.common.tensor_writing import write_tensors

_FORMAT = 1  # raised when converting changes its output
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
    NotImplementedError,  # not damaged, but unknown here or to the package gguf
)
"""What reading raises where a file holds something else than it states, or a kind of it that is not known."""


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
                raise file.refusal(error) from error
        return file

    def refusal(self, error: Exception) -> UserError:
        """Return what to say of a file that holds something else than it states, or a kind of it that is not known."""
        reason = " ".join(str(error).split())[:200]
        if isinstance(error, NotImplementedError):
            return UserError(f"{self.path} cannot be used: {reason}")
        return UserError(f"{self.path} cannot be read ({reason}); download it again")

    def _read(self, source: BinaryIO) -> None:
        version, tensors, entries = _unpack(source, "<IQQ")
        if version not in (2, 3):
            raise NotImplementedError(f"version {version} of GGUF; known: 2, 3")
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
            raise self.refusal(error) from error


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


FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SCALED = "{} scales its rotary positions in a way that is unknown"
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")


def checkpoint_of(path: Path) -> Path:
    """Return the checkpoint of a GGUF file in the user's cache, converted on the first call.

    Raises:
        UserError: the file is damaged or holds a model of another family, or the disk is full.
    """
    name = f"gguf-{fingerprint([path], _FORMAT)}"
    target = cache_home() / "models" / name / path.stem
    if target.exists():
        return target
    file = GGUFFile.open(path)

    def build(draft: Path) -> None:
        sys.stderr.write(f"converting {path} to {target}, once ..\n")
        convert(file, draft)

    numbers = [math.prod(tensor.shape) for tensor in file.tensors.values()]
    return publish(target, build, needs=2 * sum(numbers))


def convert(file: GGUFFile, folder: Path) -> None:
    """Write a GGUF model into an empty folder as a checkpoint in bf16 with its tokenizer.

    The weights differ from the published model by the rounding of the GGUF file.

    Raises:
        UserError: the file is damaged, or holds a model of another family.
    """
    family = file.metadata.get("general.architecture")
    if family not in FAMILIES:
        raise UserError(
            f"{file.path} holds a model of {family!r:.40}; known: {', '.join(FAMILIES)}"
        )
    if file.metadata.get("split.count", 0) > 1:
        raise UserError(
            f"{file.path} is one of several files of a model; join them: llama-gguf-split --merge"
        )
    try:
        config = _config(file, family)
        tokenizer = _tokenizer(file.metadata)
        tokenizer_config = _tokenizer_config(file.metadata)
        weights = _weights(file, config)
    except UserError:
        raise
    except Exception as error:  # the library of tokenizers raises nothing more special
        raise file.refusal(error) from error
    write_json(folder / "config.json", config)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        write_text(folder / "chat_template.jinja", template)
    shapes = {name: weight.shape for name, weight in weights.items()}
    write_tensors(
        shapes, lambda name: weights[name].read(file), folder / "model.safetensors"
    )


def _config(file: GGUFFile, family: str) -> dict[str, Any]:
    metadata = file.metadata

    def fact(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{family}.{name}", default)
        if value is None:
            raise KeyError(f"it states no {family}.{name}")
        return value

    heads = fact("attention.head_count")
    width = fact("embedding_length")
    theta = fact("rope.freq_base", 10_000.0)
    if fact("rope.scaling.type", "none") != "none":
        raise UserError(_SCALED.format(file.path))
    ends = []
    for name in ("eos", "eot"):  # of a text, of a turn
        end = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if end is not None and end not in ends:
            ends.append(end)
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
        "rope_parameters": {"rope_theta": theta, **_rope_scaling(file, theta)},
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


_ROPE_FACTORS = "rope_freqs.weight"


def _rope_scaling(file: GGUFFile, theta: float) -> dict[str, Any]:
    """Return the scaling of rotary frequencies in the words of transformers.

    A file of Llama 3.1 or later holds only the divisors that follow from it.
    """
    if _ROPE_FACTORS not in file.tensors:
        return {"rope_type": "default"}
    divisors = file.tensor(_ROPE_FACTORS)
    factor = float(divisors.max())
    frequencies = theta ** -(np.arange(len(divisors)) / len(divisors))
    low, high, context = 1.0, 4.0, 8192
    turns = context * frequencies / math.tau
    kept = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(divisors, 1 / (kept + (1 - kept) / factor), rtol=1e-3):
        raise UserError(_SCALED.format(file.path))
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }


@dataclass(frozen=True, slots=True)
class _Weight:
    """A tensor of a checkpoint, and where the file has it."""

    name: str  # in the file
    shape: tuple[int, ...]
    heads: int  # whose rows the file has in another order; 0 for none

    def read(self, file: GGUFFile) -> NDArray[np.float32]:
        """Return the tensor as the checkpoint has it."""
        values = file.tensor(self.name)
        if not self.heads:
            return values
        try:
            return _halves_of_heads(values, self.heads)
        except ValueError as error:  # of a size that the heads do not divide
            raise file.refusal(error) from error


def _weights(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, _Weight]:
    """Return the tensors of the checkpoint by name."""
    heads = {}
    if config["model_type"] == "llama":
        heads["attn_q"] = config["num_attention_heads"]
        heads["attn_k"] = config["num_key_value_heads"]
    weights = {}
    for name, tensor in file.tensors.items():
        if name == _ROPE_FACTORS:
            continue
        base, _, kind = name.rpartition(".")
        part = _IN_LAYER.fullmatch(base)
        target = _WEIGHTS.get(base)
        turned = 0
        if part is not None and part[2] in _LAYER_WEIGHTS:
            target = f"model.layers.{part[1]}.{_LAYER_WEIGHTS[part[2]]}"
            turned = heads.get(part[2], 0)
        if target is None:
            raise UserError(f"{file.path} holds the weights {name}, which are unknown")
        weights[f"{target}.{kind}"] = _Weight(name, tensor.shape, turned)
    return weights


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
"""How texts are cut before merging, by the name in the file."""
_AS_GPT2 = ("default", "gpt-2", "smollm", "starcoder", "refact", "command-r")
"""Names of vocabularies that are cut as GPT-2 cuts texts, or whose merges give the same then."""


def _tokenizer(metadata: Mapping[str, Any]) -> Any:
    """Return the tokenizer, as one of the library `tokenizers`."""
    from tokenizers import AddedToken, Tokenizer, processors

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        core: Tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        core = _sentencepiece(metadata, tokens)
    else:
        raise NotImplementedError(f"its tokenizer is {kind!r:.40}; known: gpt2, llama")
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    added = zip(tokens, kinds, strict=False)
    for token, token_kind in added:
        special = token_kind == _CONTROL
        if special or token_kind == _USER_DEFINED:
            add = core.add_special_tokens if special else core.add_tokens
            add([AddedToken(token, normalized=False, special=special)])
    begins = kind == "llama" or _SPLITS.get(_split_name(metadata)) == _LLAMA3
    if metadata.get("tokenizer.ggml.add_bos_token", begins):
        bos_id = metadata["tokenizer.ggml.bos_token_id"]
        bos = tokens[bos_id]
        core.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, bos_id)]
        )
    return core


def _split_name(metadata: Mapping[str, Any]) -> Any:
    """Return how texts are cut; an old file does not say it."""
    return metadata.get("tokenizer.ggml.pre", _AS_GPT2[0])


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(
        models.BPE(
            vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""
        )
    )
    name = _split_name(metadata)
    split = _SPLITS.get(name)
    if split is None and name not in _AS_GPT2:
        raise NotImplementedError(
            f"its vocabulary cuts texts as {name!r:.40}, which is unknown"
        )
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
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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
    return core
