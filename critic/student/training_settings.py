"""Settings of a critic's training by what is asked for: the defaults for one machine, or a recipe for GPUs.

The recipes are TOML files of this folder's `recipes`, in the format of `selfrag.training.recipes`; they extend those.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic.cases import GROUPS
from critic.student.layout import Style
from critic.student.training import CriticConfig
from selfrag.errors import UserError
from selfrag.training import recipes

if TYPE_CHECKING:
    from selfrag.training.settings import Scale


def known() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def configured(
    recipe: str | None,
    *,
    style: Style = "tokens",
    evidence: int = 160,
    per_label: dict[str, int | None] | None = None,
    step_tokens: int | None = None,
    device: str = "cpu",
    **changes: Any,
) -> tuple[CriticConfig, Scale | None]:
    """Settings of a run.

    Args:
        recipe: a name of `known()`, or a TOML file; None for the loop for one process.
        style: how labels are written.
        evidence: longest passage in tokens.
        per_label: group to the most rows of each label; None for the defaults, with a recipe for all rows.
        step_tokens: tokens of a step, in place of what the recipe says.
        device: of the loop.
        changes: fields of `TrainingConfig`; those that are None stay as they are.

    Returns:
        The settings, and where they run.

    Raises:
        UserError: there is no such recipe, or a setting is out of bounds.
    """
    default = CriticConfig()
    given = {key: value for key, value in changes.items() if value is not None}
    if step_tokens is not None:
        given |= {"step_tokens": step_tokens, "step_rows": None}
    limits, scale = replace(default.limits, evidence=evidence), None
    if recipe is None:
        rate = 2e-5 if given.get("method") == "full" else default.training.learning_rate
        workers = 1 if device.startswith("cuda") else default.training.workers
        training = replace(default.training, **{"learning_rate": rate, "workers": workers, "device": device, **given})
        return CriticConfig(style, limits, per_label or default.per_label, training), None
    path = _folder() / f"{recipe}.toml"
    if not path.is_file() and not Path(recipe).is_file():
        raise UserError(f"no recipe {recipe}: give a file or one of {', '.join(known())}")
    read = recipes.read(str(path) if path.is_file() else recipe)
    training, scale = replace(read.config(), **given), read.scale
    return CriticConfig(style, limits, per_label or dict.fromkeys(GROUPS), training), scale


def _folder() -> Any:
    return files("critic.student") / "recipes"
