"""The default model: base weights from the package index, our adapter from this package, merged once into a checkpoint.

Other adapters of the same base are merged likewise. Knows the order of the steps; converting and merging belong to
`selfrag.training`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from selfrag.demo.assets import BASE_MODEL
from selfrag.demo.cache import cache_home, publish
from selfrag.demo.download import fetch
from selfrag.errors import UserError

ADAPTER = Path(__file__).parent / "adapter"
_FORMAT = 1  # raised when converting or merging changes its output
_CHECKPOINT_BYTES = 270 * 2**20


def model_path() -> Path:
    """Folder of the default model as an ordinary checkpoint, made on the first call.

    Raises:
        UserError: the base model cannot be downloaded, or the disk is full.
    """
    return merged_path(ADAPTER, "demo")


def base_path() -> Path:
    """Folder of the demo's base model as an ordinary checkpoint, made on the first call; what training starts from.

    Raises:
        UserError: it cannot be downloaded, or the disk is full.
    """
    target = cache_home() / "models" / BASE_MODEL.fingerprint / "SmolLM2-135M-Instruct"  # model cards take the name
    if target.exists():
        return target
    packed = fetch(BASE_MODEL) / next(iter(BASE_MODEL.files))

    def build(draft: Path) -> None:
        from selfrag.training.gguf import convert

        convert(packed, draft)

    return _made(target, "base", build)


def checkpoint_path() -> Path:
    """Where the merged checkpoint is, or will be; depends on the adapter's content and the base model's checksum."""
    return _place(ADAPTER, "demo")


def merged_path(adapter: Path, name: str, *, beside: Sequence[str] = ()) -> Path:
    """Folder of a checkpoint that a packaged adapter makes of the demo's base model, made on the first call.

    Args:
        adapter: folder of the adapter.
        name: of the checkpoint in the cache.
        beside: files of the adapter's folder that belong to the checkpoint as well.

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

    return _made(target, name, build)


def _made(target: Path, name: str, make: Callable[[Path], None]) -> Path:
    def build(draft: Path) -> None:
        from tqdm import tqdm

        with tqdm(total=1, desc=f"preparing the {name} model", unit="step", disable=None) as bar:
            make(draft)
            bar.update()

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
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
