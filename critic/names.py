"""Names of trained critics: `demo`, or whatever names a checkpoint. Loads none."""

from __future__ import annotations

from pathlib import Path

from selfrag.loading import resolve_model

DEMO = "demo"
"""The critic of the package."""


def resolve_critic(name: str | Path) -> Path:
    """Folder of a critic's checkpoint: the package's, a local one, or one on the hub.

    Raises:
        UserError: there is no such folder, and the hub has or gives no such model.
    """
    if name == DEMO:
        from critic.demo import critic_path

        return critic_path()
    return resolve_model(name)
