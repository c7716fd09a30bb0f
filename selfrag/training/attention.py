"""Attention over rows packed end to end: causal inside each row, nothing across rows, no padding and no mask tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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
    **_: Any,
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

    Returns:
        [1, tokens, heads, width], and no attention weights.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    rows = zip(*(torch.split(states, row_lengths, 2) for states in (query, key, value)), strict=True)
    outputs = [scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling) for q, k, v in rows]
    return torch.cat(outputs, 2).transpose(1, 2), None
