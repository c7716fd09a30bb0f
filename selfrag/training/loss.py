"""Losses at target positions of packed rows, for any causal language model and any wrapper around one.

One function for every trainer: what is computed here is what all of them minimise. Knows no optimiser.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from selfrag.training.packing import Pack


def target_losses(model: Any, pack: Pack, *, packed: bool = True, keeps: bool = True) -> tuple[Tensor, Tensor]:
    """Cross entropy and hit of every target position; logits are made there and nowhere else.

    Args:
        model: a causal language model, or what PEFT, DDP, FSDP or DeepSpeed made of it.
        pack: on the model's device.
        packed: the model runs `attention.packed_attention`; otherwise an attention of transformers, which reads the
            borders of the rows off the positions.
        keeps: the model's forward has `logits_to_keep`; see `keeps_logits`.

    Returns:
        Losses [n] in float32 with a gradient, and whether the target was the most probable token [n].
    """
    options: dict[str, Any] = {"row_lengths": pack.row_lengths} if packed else {}
    if keeps:
        options["logits_to_keep"] = pack.predictors
    logits = model(input_ids=pack.ids, position_ids=pack.positions, use_cache=False, **options).logits[0]
    logits = (logits if keeps else logits[pack.predictors]).float()
    return cross_entropy(logits, pack.targets, reduction="none"), logits.detach().argmax(-1) == pack.targets


def keeps_logits(causal: Any) -> bool:
    """Whether a causal language model can make logits at chosen positions only; nearly all of transformers' can."""
    return "logits_to_keep" in inspect.signature(type(causal).forward).parameters
