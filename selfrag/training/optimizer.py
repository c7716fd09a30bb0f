"""The optimiser of every trainer: AdamW, with a rate of their own for the token rows. Knows no schedule and no loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from selfrag.training.model import Trainee
    from selfrag.training.run import TrainingConfig


def optimizer_for(trainee: Trainee, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over everything that is trained; `peak` of each group is its learning rate before the schedule.

    Where the token rows are no parameters of their own (`full` under a wrapper that cuts parameters into shards), they
    learn at `learning_rate` with the matrix they are in.
    """
    matrices = [p for p in trainee.weights.values() if p.dim() > 1]
    vectors = [p for p in trainee.weights.values() if p.dim() <= 1]
    groups = [
        {"params": matrices, "peak": config.learning_rate, "weight_decay": config.weight_decay},
        {"params": vectors, "peak": config.learning_rate, "weight_decay": 0.0},
        {"params": list(trainee.rows.values()), "peak": config.row_learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [{**group, "lr": group["peak"]} for group in groups if group["params"]], betas=(config.beta1, config.beta2)
    )
