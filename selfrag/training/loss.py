"""Losses at target positions of packed rows, for any causal language model and any wrapper around one.

One function for every trainer: what is computed here is what all of them minimise. Knows no optimiser.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from selfrag.training.packing import Pack, apart


def target_losses(
    model: Any, pack: Pack, *, packed: bool = True, keeps: bool = True, rowwise: bool = False
) -> tuple[Tensor, Tensor]:
    """Cross entropy and hit of every target position; logits are made there and nowhere else.

    Args:
        model: a causal language model, or what PEFT, DDP, FSDP or DeepSpeed made of it.
        pack: on the model's device.
        packed: the model runs `attention.packed_attention`; otherwise an attention of transformers, which reads the
            borders of the rows off the positions.
        keeps: the model's forward has `logits_to_keep`; see `keeps_logits`.
        rowwise: one row after the other, for models whose rows would see each other in a pack; see `isolation.py`.

    Returns:
        Losses [n] in float32 with a gradient, and whether the target was the most probable token [n].
    """
    if rowwise:
        parts = [_of_row(model, row, keeps=keeps) for row in apart(pack)]
        return torch.cat([losses for losses, _ in parts]), torch.cat([hits for _, hits in parts])
    options: dict[str, Any] = {"row_lengths": pack.row_lengths} if packed else {}
    if keeps:
        options["logits_to_keep"] = pack.predictors
    logits = model(input_ids=pack.ids, position_ids=pack.positions, use_cache=False, **options).logits[0]
    return _measured(logits if keeps else logits[pack.predictors], pack)


def _of_row(model: Any, row: Pack, *, keeps: bool) -> tuple[Tensor, Tensor]:
    """A row alone, as any causal language model takes it: positions and borders are its own business."""
    options: dict[str, Any] = {"logits_to_keep": row.predictors} if keeps else {}
    mask = torch.ones_like(row.ids)
    logits = model(input_ids=row.ids, attention_mask=mask, use_cache=False, **options).logits[0]
    return _measured(logits if keeps else logits[row.predictors], row)


def _measured(logits: Tensor, pack: Pack) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    return cross_entropy(logits, pack.targets, reduction="none"), logits.detach().argmax(-1) == pack.targets


def keeps_logits(causal: Any) -> bool:
    """Whether a causal language model can make logits at chosen positions only; nearly all of transformers' can."""
    return "logits_to_keep" in inspect.signature(type(causal).forward).parameters
