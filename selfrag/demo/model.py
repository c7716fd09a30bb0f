"""The default model: base weights from the package index, our adapter from this package, merged once into a checkpoint.

Other adapters of the same base are merged likewise. Knows the order of the steps; converting and merging belong to
`selfrag.training`.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from selfrag.common.errors import UserError
from selfrag.demo.assets import BASE_MODEL, CORPUS, ENCODER, asset_path, cache_home

ADAPTER = Path(__file__).parent / "adapter"
_FORMAT = 2  # raised when converting or merging changes its output
_CHECKPOINT_BYTES = 270 * 2**20
_WEIGHTS = "model.safetensors"
_BASE = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
_MERGED = "e3d2afbbaf0562a805aee21264ed43ce8e3f0d348262cf07d902f7e711da8d8b"
"""SHA-256 of the weights that the adapters were trained on and the published figures were measured with."""


def model_path() -> Path:
    """Folder of the default model as an ordinary checkpoint, made on the first call.

    Raises:
        UserError: the base model cannot be downloaded, or the disk is full.
    """
    return merged_path(ADAPTER, "demo", weights=_MERGED)


def base_path() -> Path:
    """Folder of the demo's base model as an ordinary checkpoint, made on the first call; what training starts from.

    Raises:
        UserError: it cannot be downloaded, or the disk is full.
    """
    target = cache_home() / "models" / BASE_MODEL.fingerprint / "SmolLM2-135M-Instruct"  # model cards take the name
    if target.exists():
        return target
    from selfrag.demo.download import fetch

    packed = fetch(BASE_MODEL) / next(iter(BASE_MODEL.files))

    def build(draft: Path) -> None:
        from selfrag.training.export import convert

        convert(packed, draft)

    return _made(target, "base", build, _BASE)


def checkpoint_path() -> Path:
    """Where the merged checkpoint is, or will be; depends on the adapter's content and the base model's checksum."""
    return _place(ADAPTER, "demo")


def merged_path(adapter: Path, name: str, *, beside: Sequence[str] = (), weights: str | None = None) -> Path:
    """Folder of a checkpoint that a packaged adapter makes of the demo's base model, made on the first call.

    `beside` are files of the adapter's folder that belong to the checkpoint as well. `weights` is the SHA-256 of the
    weights that were measured; others are kept, and told of on the error stream.

    Raises:
        UserError: the adapter is missing, the base model cannot be downloaded, or the disk is full.
    """
    target = _place(adapter, name)
    if target.exists():
        return target
    base = base_path()

    def build(draft: Path) -> None:
        from selfrag.training.export import merge

        merge(base, adapter, draft)
        for file in beside:
            shutil.copy(adapter / file, draft / file)

    return _made(target, name, build, weights)


def _made(target: Path, name: str, make: Callable[[Path], None], weights: str | None) -> Path:
    from selfrag.demo.download import publish

    def build(draft: Path) -> None:
        from tqdm import tqdm

        with tqdm(total=1, desc=f"preparing the {name} model", unit="step", disable=None) as bar:
            make(draft)
            bar.update()
        if weights is not None and (found := _sha256(draft / _WEIGHTS)) != weights:
            sys.stderr.write(
                f"{target / _WEIGHTS}: SHA-256 {found[:12]}.., not {weights[:12]}..: not the weights measured;"
                f" torch {version('torch')} or transformers {version('transformers')} makes them differently\n"
            )

    return publish(target, build, needs=2 * _CHECKPOINT_BYTES)


def _place(adapter: Path, name: str) -> Path:
    return cache_home() / "models" / f"{name}-{_fingerprint(adapter)}"


def _fingerprint(adapter: Path) -> str:
    files = sorted(path for path in adapter.glob("*") if path.suffix in {".json", ".safetensors"})
    if not files:
        raise UserError(f"the adapter is missing from {adapter}; install selfrag again")
    digest = hashlib.sha256(f"{_FORMAT} {BASE_MODEL.fingerprint}".encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(_sha256(path)))
    return digest.hexdigest()[:12]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encoder_path() -> Path:
    """Folder of the default sentence encoder (all-MiniLM-L6-v2, 384 dimensions), downloaded on the first call.

    Raises:
        UserError: it cannot be downloaded, or the disk is full.
    """
    folder = asset_path(ENCODER)
    if not folder.exists():
        from selfrag.demo.download import fetch

        fetch(ENCODER)
    return folder


_INDEX_FORMAT = 1  # raised when splitting or indexing changes its output


def index_path() -> Path:
    """Folder of the index over the default corpus, built on the first call.

    Raises:
        UserError: the corpus or the encoder cannot be downloaded, or the disk is full.
    """
    folder = cache_home() / "indexes" / f"wikipedia-{CORPUS.fingerprint}-{ENCODER.fingerprint}-{_INDEX_FORMAT}"
    if not folder.exists():
        from selfrag.demo.download import build_index

        build_index(folder)
    return folder
