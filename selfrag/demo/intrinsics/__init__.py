"""What judges for the demo model beside its tokens: a folder an intrinsic, with an adapter or learned weights."""

from __future__ import annotations

from pathlib import Path


def adapter_paths() -> dict[str, Path]:
    """Folder of each intrinsic that has an adapter or weights of tokens and words, by its name."""
    here = Path(__file__).parent
    return {path.parent.name: path.parent for path in sorted(here.glob("*/*.json"))}
