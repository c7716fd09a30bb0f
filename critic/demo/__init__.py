"""The critic of the package: an adapter of the demo model's base, merged with it at the first use."""

from __future__ import annotations

from pathlib import Path

from selfrag.demo import merged_path

ADAPTER = Path(__file__).parent / "adapter"
_MERGED = "ba5f6d7526d6e9dc33470a5fe94d9a6ef0534d83c9769893734960af2a444fe3"
"""SHA-256 of the weights that the published figures were measured with."""


def critic_path() -> Path:
    """Folder of the critic as a checkpoint with its `critic.json`, made on the first call."""
    return merged_path(ADAPTER, "critic", beside=("critic.json",), weights=_MERGED)
