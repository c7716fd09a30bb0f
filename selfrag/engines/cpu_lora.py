"""LoRA on vLLM's CPU backend with one matrix product an adapter, where vLLM makes one a token. Imports no vllm.

vLLM (0.32) copies an adapter's matrices for every token of a batch before it multiplies, which takes several times as
long as the model itself. Here all tokens of an adapter are multiplied at once, in float32, as vLLM holds what lies
between the two matrices; results are the same up to rounding. Only the given engine is changed, no module of vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Rows: TypeAlias = "Tensor | slice"


def multiply_by_groups(worker: Any) -> int:
    """Give the adapters of a vLLM worker these products; for `LLMEngine.collective_rpc`.

    Returns:
        How many sets of adapters were changed: 0 without LoRA, or where vLLM looks otherwise than it did.
    """
    manager = getattr(getattr(worker.model_runner, "lora_manager", None), "_adapter_manager", None)
    wrappers = {id(wrapper): wrapper for wrapper in getattr(manager, "punica_wrapper_mapping", {}).values()}
    changed = 0
    for wrapper in wrappers.values():
        if all(hasattr(wrapper, name) for name in ("_apply_shrink", "_apply_expand", "token_lora_indices")):
            wrapper._apply_shrink = partial(_shrink, wrapper)
            wrapper._apply_expand = partial(_expand, wrapper)
            changed += 1
    return changed


def _shrink(wrapper: Any, y: Tensor, x: Tensor, weights: Tensor, scale: float) -> None:
    """`y = scale * x @ A.T`, each token with the A of its adapter; `y` [tokens, rank] comes as zeros."""
    y = y.view(-1, y.shape[-1])
    for rows, weight in _groups(wrapper.token_lora_indices, weights):
        y[rows, : weight.shape[0]] = scale * (x[rows].to(y.dtype) @ weight.to(y.dtype).T)


def _expand(
    wrapper: Any, y: Tensor, x: Tensor, weights: Tensor, offset: int, size: int, add_inputs: bool = True
) -> None:
    """`y[:, offset : offset + size] += x @ B.T`, each token with the B of its adapter."""
    part = y[:, offset : offset + size]
    if not add_inputs:
        part.zero_()
    for rows, weight in _groups(wrapper.token_lora_indices, weights):
        part[rows] += (x[rows] @ weight.to(x.dtype).T).to(y.dtype)


def _groups(indices: Tensor, weights: Tensor) -> Iterator[tuple[Rows, Tensor]]:
    """Rows of each adapter with its matrix; tokens of the base model, below 0, have none."""
    weights = weights.squeeze(1) if weights.dim() == 4 else weights
    present = sorted(set(indices.tolist()))
    for index in present:
        if index >= 0:
            yield slice(None) if len(present) == 1 else (indices == index).nonzero().squeeze(1), weights[index]
