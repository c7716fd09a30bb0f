"""Settings of a critic: how it is asked, what it learns from, and the recipes of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from critic.cases import GROUPS
from critic.student.prompt import LabelStyle, PartLimits
from selfrag.training.recipes import GENERATOR, Recipe, TrainingStage
from selfrag.training.settings import Scale, TrainingConfig, Unset


@dataclass(frozen=True)
class Judging:
    """Table `[critic]` of a recipe: how a critic is asked, and what it learns from.

    Attributes:
        style: labels as reflection `tokens`, or as plain `words`.
        limits: longest parts of a prompt.
        per_label: group to the most rows of each label; None for all of them. A group left out is not learned.
    """

    style: LabelStyle = "tokens"
    limits: PartLimits = field(
        default_factory=lambda: PartLimits(
            evidence=160, preceding=48, output=160, instruction=128
        )
    )
    per_label: Mapping[str, Unset[int]] = field(
        default_factory=lambda: dict.fromkeys(GROUPS)
    )


@dataclass(frozen=True, kw_only=True)
class CriticConfig(Judging):
    """What decides a critic, next to base model and rows."""

    # optimiser, adapter and schedule; its seed also draws the rows
    training: TrainingConfig

    @classmethod
    def of(cls, recipe: Recipe) -> CriticConfig:
        """Return the settings of a recipe of `CRITIC`."""
        return cls(**vars(recipe.table("critic")), training=recipe.config)


CRITIC = TrainingStage(
    "critic",
    Path(str(files("critic.student") / "recipes")),
    {"critic": Judging, "training": TrainingConfig, "scale": Scale},
    (GENERATOR,),
)
