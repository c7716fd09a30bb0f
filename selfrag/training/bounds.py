"""What settings of a training run may be: a wrong one is named before a model is loaded. Knows no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from retrieval.checks import choice, number, whole

if TYPE_CHECKING:
    from selfrag.training.run import TrainingConfig

_COUNTS = (
    "epochs",
    "max_steps",
    "step_tokens",
    "step_rows",
    "load_tokens",
    "workers",
    "max_length",
    "checkpoint_steps",
    "validate_steps",
    "patience",
)
"""Whole numbers of at least 1; where the setting may be left out, None is fine."""

_SHARES = ("warmup", "beta1", "beta2")
"""Numbers from 0 to 1."""

_AMOUNTS = ("learning_rate", "row_learning_rate", "weight_decay", "clip")
"""Numbers of at least 0."""


def check(config: TrainingConfig) -> None:
    """Refuse settings with which nothing could be learned.

    Raises:
        UserError: the first setting out of its bounds, with its value and what it may be.
    """
    from selfrag.training.model import Method, Precision

    for name, choices in (("method", get_args(Method)), ("precision", get_args(Precision))):
        choice(name, getattr(config, name), choices)
    for name in _COUNTS:
        if (value := getattr(config, name)) is not None:
            whole(name, value)
    whole("max_passage", config.max_passage, 0)
    whole("lora rank", config.lora.rank)
    for name in _SHARES:
        number(name, getattr(config, name), 0, 1)
    for name in _AMOUNTS:
        number(name, getattr(config, name))
