"""Makes the default model: base weights from the package index and our adapter, merged into a checkpoint.

Other adapters of the same base are merged likewise. All is done by numpy, so that a model is made in seconds where
torch is not installed; `selfrag train merge` gives the same bytes.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.common.atomic import write_json, write_text
from selfrag.common.cache import publish
from selfrag.common.fast_tokenizer import FastTokenizer
from selfrag.common.gguf_files import GGUFFile, convert
from selfrag.common.reading import read_json
from selfrag.common.tensor_files import TensorFiles
from selfrag.common.tensor_writing import merge_pair, write_tensors
from selfrag.demo import BASE_MODEL, base_path, file_digest
from selfrag.demo.download import fetch, timed
from selfrag.reflection.vocabulary import STORED

_CHECKPOINT_BYTES = 270 * 2**20
_WEIGHTS = "model.safetensors"
_BASE = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
"""SHA-256 of the weights that the adapters were trained on."""


def make_base(target: Path) -> None:
    """Download the base model and convert it to a checkpoint at `target`."""
    packed = fetch(BASE_MODEL) / next(iter(BASE_MODEL.files))

    def build(draft: Path) -> None:
        convert(GGUFFile.open(packed), draft)

    _make(target, "base", build, _BASE)


def make_merged(
    target: Path, adapter: Path, name: str, beside: Sequence[str], weights: str | None
) -> None:
    """Merge an adapter into the base model; arguments as of `selfrag.demo.merged_path`."""
    base = base_path()

    def build(draft: Path) -> None:
        merge(base, adapter, draft)
        for file in beside:
            shutil.copy(adapter / file, draft / file)

    _make(target, name, build, weights)


_EMBEDDING = "model.embed_tokens.weight"
_PREFIX = "base_model.model."
_ROWS = f"{_PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta"


def merge(base: Path, adapter: Path, folder: Path) -> None:
    """Write the base with an adapter merged in, and with the adapter's reflection tokens, into an empty folder."""
    settings = read_json(adapter / "adapter_config.json")
    reflection = read_json(adapter / "reflection.json")
    tokens: dict[str, int] = reflection["token_ids"]
    scale = settings["lora_alpha"] / settings["r"]
    with TensorFiles(base) as weights, TensorFiles(adapter) as trained:
        merged: dict[str, Any] = {name: weights[name] for name in weights}
        for name in trained:
            module, is_down, _ = name.partition(".lora_A.")
            if is_down:
                weight = merged[f"{module.removeprefix(_PREFIX)}.weight"]
                up = trained[f"{module}.lora_B.weight"]
                merge_pair(weight, trained[name], up, scale)
        rows = trained[_ROWS].astype(merged[_EMBEDDING].dtype)
        # the new tokens follow the others
        merged[_EMBEDDING] = np.concatenate([merged[_EMBEDDING], rows])
    shapes = {name: values.shape for name, values in merged.items()}
    write_tensors(shapes, merged.__getitem__, folder / _WEIGHTS)
    config = read_json(base / "config.json")
    config["vocab_size"] = len(merged[_EMBEDDING])
    write_json(folder / "config.json", config)
    tokenizer = FastTokenizer(base)
    tokenizer.backend_tokenizer.add_special_tokens(list(tokens))
    write_text(
        folder / "tokenizer.json", tokenizer.backend_tokenizer.to_str(pretty=True)
    )
    calibration = reflection.get(STORED)
    stated = {STORED: calibration} if calibration else {}
    write_json(folder / "tokenizer_config.json", tokenizer.init_kwargs | stated)
    write_text(folder / "chat_template.jinja", tokenizer.get_chat_template())


def _make(
    target: Path, name: str, make: Callable[[Path], None], weights: str | None
) -> None:
    def build(draft: Path) -> None:
        from tqdm import tqdm

        with (
            timed(f"{name} model"),
            tqdm(
                total=1, desc=f"preparing the {name} model", unit="step", disable=None
            ) as bar,
        ):
            make(draft)
            bar.update()
        if weights is None:
            return
        digest = file_digest(draft / _WEIGHTS)
        if digest != weights:
            sys.stderr.write(
                f"{target / _WEIGHTS}: SHA-256 {digest[:12]}.., not {weights[:12]}..: not the weights measured;"
                f" numpy {np.__version__} makes them differently\n"
            )

    publish(target, build, needs=2 * _CHECKPOINT_BYTES)
