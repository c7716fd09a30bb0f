"""What settings of a training run may be: a wrong one is named before a model is loaded. Knows no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

from selfrag.errors import UserError

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
        if (value := getattr(config, name)) not in choices:
            raise UserError(f"{name} = {value!r}: choose one of {', '.join(choices)}")
    for name in _COUNTS:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"{name} = {value}: give a whole number of at least 1")
    if config.max_passage < 0:
        raise UserError(f"max_passage = {config.max_passage}: give a whole number of at least 0")
    if config.lora.rank < 1:
        raise UserError(f"lora rank = {config.lora.rank}: give a whole number of at least 1")
    for names, high, said in ((_SHARES, 1.0, "from 0 to 1"), (_AMOUNTS, math.inf, "of at least 0")):
        for name in names:
            if not 0 <= (value := getattr(config, name)) <= high:
                raise UserError(f"{name} = {value:g}: give a number {said}")
