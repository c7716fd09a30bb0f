"""Writes a trained model as an adapter or a merged checkpoint.

vLLM refuses adapters with trained token rows, so a model with reflection rows is always served merged. Merging expands
the base exactly as training did, so an adapter needs only the base model it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from selfrag.common.atomic import check_room, new_directory
from selfrag.common.errors import UserError, count_of
from selfrag.common.pretrained import load, load_adapter, saved_format
from selfrag.common.reading import read_json
from selfrag.loading import check_base
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import STORED, Vocabulary
from selfrag.training.expansion import expand
from selfrag.training.lora import trained_parts
from selfrag.training.model import Trainee


@contextmanager
def published(out_dir: Path) -> Iterator[Path]:
    """Give a directory to fill, which takes the name `out_dir` when the block ends without an exception.

    Raises:
        UserError: `out_dir` is a file, or a directory with content; or it cannot be written.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise UserError(
            f"{out_dir} exists already; choose another directory or remove it"
        )
    with new_directory(out_dir) as working:
        yield working


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
WEIGHTS = "adapter_model.safetensors"
REFLECTION = "reflection.json"
"""What PEFT's own config cannot say: which token has which row."""


def save_adapter(
    trainee: Trainee,
    out_dir: Path,
    state: Mapping[str, Any] | None = None,
    *,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write LoRA pairs and token rows in bf16 into a new or empty folder, in PEFT's format, with JSON files beside.

    Args:
        trainee: trained with `lora`.
        out_dir: the folder, which is returned.
        state: the model's parameters by name, gathered, where the model itself holds only shards.
        beside: name of a further file -> its content; of an adapter with token rows, `reflection.json` always is one.

    Raises:
        UserError: the model was trained in full, or `out_dir` is in use.
    """
    if not _adapted(trainee):
        raise UserError(
            "a fully trained model has no adapter; save it with save_checkpoint"
        )
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    trained = get_peft_model_state_dict(
        trainee.model, state_dict=state, save_embedding_layers=False
    )
    tensors = {
        name: tensor.detach().cpu().to(torch.bfloat16).contiguous()
        for name, tensor in trained.items()
    }
    config = trainee.model.peft_config["default"]
    files = dict(beside or {})
    if trainee.expansion.token_ids:
        files[REFLECTION] = {
            "format": 1,
            "base": shape(trainee.model.get_base_model()),
            "token_ids": dict(zip(TOKENS, trainee.expansion.token_ids, strict=True)),
        }
    with published(out_dir) as directory:
        config.save_pretrained(directory)
        path = directory / "adapter_config.json"
        settings = json.loads(path.read_text()) | {
            "base_model_name_or_path": None,
            "inference_mode": True,
        }
        if not isinstance(settings["target_modules"], str):
            # a set: another order each time
            settings["target_modules"] = sorted(settings["target_modules"])
        path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
        for name, content in files.items():
            (directory / name).write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n",
                encoding="utf-8",
            )
        save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
        for file in directory.iterdir():
            file.chmod(0o644)
    return out_dir


def save_checkpoint(
    trainee: Trainee, out_dir: Path, state: Mapping[str, Any] | None = None
) -> Path:
    """Write a plain Hugging Face checkpoint with its tokenizer, LoRA merged. The trainee is of no use afterwards.

    `out_dir` must not exist, or be empty; `state` is that of `save_adapter`, for `full` only.

    Raises:
        UserError: `out_dir` is in use, or `state` lacks weights.
    """
    if _adapted(trainee):
        model = _merged(trainee.model)
    else:
        trainee.fused.write_back()
        model = trainee.model if state is None else _gathered(trainee.model, state)
        model.to(torch.bfloat16)
    model.config.use_cache = True
    return _save(model, trainee.tokenizer, out_dir)


def merge(
    base_dir: Path, adapter_dir: Path, out_dir: Path, *, dtype: str = "auto"
) -> Path:
    """Expand a base model, merge an adapter that was trained on it, and write a plain checkpoint to `out_dir`.

    Args:
        base_dir: the unquantised base, also of an adapter that was trained on it in 4 bits.
        adapter_dir: the adapter.
        out_dir: must not exist, or be empty. It appears complete or not at all, and is returned.
        dtype: number format of the result: `float32`, `bfloat16`, `float16`, or `auto` for that of the base.

    Raises:
        UserError: a directory is not what it should be, base and adapter do not belong together, or the base is
            quantised.
    """
    check_base(base_dir)
    expected = _read_reflection(adapter_dir)
    saved = saved_format(base_dir) or "bfloat16"
    written = dtype
    if dtype == "auto":
        written = saved
    size = sum(file.stat().st_size for file in base_dir.glob("*.safetensors"))
    check_room(out_dir, size * _BYTES[written] // _BYTES[saved])
    try:
        tokenizer = load("AutoTokenizer", base_dir)
        model = load("AutoModelForCausalLM", base_dir, dtype=getattr(torch, written))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{base_dir} holds no causal language model with its tokenizer: {error}"
        ) from error
    expansion = expand(model, tokenizer)
    expanded = {
        "base": shape(model),
        "token_ids": dict(zip(TOKENS, expansion.token_ids, strict=True)),
    }
    for key, value in expanded.items():
        if value != expected[key]:
            raise UserError(
                f"the adapter {adapter_dir} was trained on another base model than {base_dir}:"
                f" {key} is {expected[key]} there and {value} here"
            )
    adapted = load_adapter(model, adapter_dir)
    if expected[STORED]:
        # saved with it, and read by `Vocabulary.from_tokenizer`
        tokenizer.init_kwargs[STORED] = expected[STORED]
    return _save(_merged(adapted), tokenizer, out_dir)


def _adapted(trainee: Trainee) -> bool:
    return hasattr(trainee.model, "peft_config")


def _merged(adapted: Any) -> Any:
    """Return the base model of a PEFT model, with the trained state in its weights."""
    trained_parts(adapted).write_back()
    return adapted.unload()


def _gathered(sharded: Any, state: Mapping[str, Any]) -> Any:
    """Return an unsharded model like `sharded` with the weights of `state`; a sharded one cannot load them."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    # nothing is computed with it; `from_config` would cut this one into shards, too
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(sharded.config)](sharded.config)
    model.generation_config = sharded.generation_config
    # tied weights may be there once
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    if hollow := [
        name for name, parameter in model.named_parameters() if parameter.is_meta
    ]:
        raise UserError(
            f"{hollow[0]} and {count_of(len(hollow) - 1, 'other weights')} did not come back from the shards"
        )
    return model


def _save(model: Any, tokenizer: Any, out_dir: Path) -> Path:
    with published(out_dir) as directory:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        _verify(directory, model)
    return out_dir


def _verify(directory: Path, model: Any) -> None:
    """Read back what was written; a checkpoint with a hole in it must not appear under its name."""
    vocabulary = Vocabulary.from_tokenizer(load("AutoTokenizer", directory))
    rows = int(load("AutoConfig", directory).vocab_size)
    ids = [vocabulary.ids[token] for token in TOKENS]
    if max(ids) >= rows:
        raise UserError(
            f"reflection token id {max(ids)} has no row: the matrix has {count_of(rows, 'rows')}"
        )
    for matrix in (
        model.get_input_embeddings().weight,
        model.get_output_embeddings().weight,
    ):
        chosen = matrix.detach()[ids].float()
        if not torch.isfinite(chosen).all() or len(torch.unique(chosen, dim=0)) != len(
            ids
        ):
            raise UserError(
                "the reflection rows are not finite and distinct; train the model again"
            )


def shape(model: Any) -> dict[str, Any]:
    """Return what base and adapter must agree on; of the model as it was trained."""
    config = model.config
    return {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "rows": config.vocab_size,  # not the matrix: where it is cut into shards, it has another shape
    }


def _read_reflection(adapter_dir: Path) -> dict[str, Any]:
    path = adapter_dir / REFLECTION
    try:
        record = read_json(path)
        return {
            "base": record["base"],
            "token_ids": record["token_ids"],
            STORED: record.get(STORED),
        }
    except (UserError, KeyError, TypeError) as error:
        raise UserError(
            f"{adapter_dir} holds no adapter of selfrag.training: {path.name} is missing or bad"
        ) from error
