"""Whether a model keeps packed rows apart. Some families do not: old attention code, convolutions, state spaces.

Asked of the model itself rather than of a list of families: rows are apart if nothing that one of them says depends on
another, and that is a gradient which is exactly zero, whatever the precision. Knows no data.
"""

from __future__ import annotations

from typing import Any

import torch

from selfrag.training import attention

_ROW = 6  # tokens of each of the two rows


def isolates(model: Any) -> bool:
    """Whether the second of two packed rows is independent of the first.

    Args:
        model: a causal language model with the attention that it will be trained with.

    Returns:
        False also where the model cannot take packed rows at all.
    """
    if model.config._attn_implementation == "flash_attention_2":
        return _as_ours(model)
    device = next(model.parameters()).device
    ids = torch.arange(2 * _ROW, device=device)[None] % model.get_input_embeddings().weight.shape[0]
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    positions = torch.arange(_ROW, device=device).repeat(2)[None]
    options = {"row_lengths": [_ROW, _ROW]} if model.config._attn_implementation == attention.NAME else {}
    try:
        logits = model(inputs_embeds=embedded, position_ids=positions, use_cache=False, **options).logits[0]
        (gradient,) = torch.autograd.grad(logits[_ROW:].float().square().sum(), embedded)
    except Exception:  # whatever its code makes of arguments that it was not written for
        return False
    return not bool(gradient[0, :_ROW].any()) and bool(gradient[0, _ROW:].any())


def _as_ours(model: Any) -> bool:
    """FlashAttention runs on GPUs only: ask with our own attention, which the same layers call in the same way."""
    chosen = model.config._attn_implementation
    try:
        model.set_attn_implementation(attention.NAME)
        return isolates(model)
    except Exception:  # layers of old code have their attention built in
        return False
    finally:
        model.config._attn_implementation = chosen
