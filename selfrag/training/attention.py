"""Attention over rows packed end to end: causal inside each row, nothing across rows, no padding.

Knows sliding windows (Mistral, Gemma) and capped scores (Gemma 2). What it does not know it refuses: a wrong number
would look like a bad model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from selfrag.errors import UserError

NAME = "selfrag_packed"
"""Value of `attn_implementation` after `register()`."""


def register() -> str:
    """Make the packed attention known to transformers; returns its name. Calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    return NAME


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_lengths: list[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention, row by row.

    Args:
        module: the calling attention layer.
        query: [1, heads, tokens, width].
        key: [1, key heads, tokens, width]; key heads divide heads.
        value: as `key`.
        attention_mask: ignored; the rows are the mask.
        row_lengths: tokens of each row; they sum to `tokens`. Reaches this function as a keyword of the model call.
        scaling: factor on the scores; torch's default if None.
        sliding_window: a token sees this many tokens back, itself included; None for all.
        softcap: scores are bent below this value; None for none.
        others: what else the model's layers pass on; dropout is off in training here.

    Returns:
        [1, tokens, heads, width], and no attention weights.

    Raises:
        UserError: the layer wants attention sinks or a position bias.
    """
    if wanted := [name for name in ("s_aux", "position_bias") if others.get(name) is not None]:
        raise UserError(
            f"{type(module).__name__} needs {wanted[0]}, which packed attention has not;"
            " train with attention = 'sdpa' or 'flash_attention_2' in the [scale] table"
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    rows = zip(*(torch.split(states, row_lengths, 2) for states in (query, key, value)), strict=True)
    outputs = [_row(q, k, v, scaling, sliding_window, softcap) for q, k, v in rows]
    return torch.cat(outputs, 2).transpose(1, 2), None


def _row(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None
) -> Tensor:
    """Causal attention of one row."""
    tokens = query.shape[2]
    if softcap is None and (window is None or window >= tokens):
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    if softcap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scale / softcap)
    shares = scores.masked_fill(~seen, float("-inf")).softmax(-1, dtype=torch.float32)
    return shares.to(query.dtype) @ value
