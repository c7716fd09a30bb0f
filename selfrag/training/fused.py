"""The same LoRA numbers in fewer passes over memory: what makes training on a CPU bearable.

PEFT owns parameters, files and merging; this file only replaces how a PEFT model computes while it trains:

- a LoRA layer multiplies once by `W + scale * B A`, rebuilt after each optimiser step: the bf16 weights of a merged
  checkpoint, up to the order of their sums. Backward makes the gradients of A and B only, from thin products.
- trainable token rows are looked up beside the frozen matrix (`token_rows.py`), which is never copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import linear

from selfrag.training.activated import ActivatedLinear, Activation
from selfrag.training.token_rows import TokenRows, replaceable, token_ids

_BLOCK = 2**16
"""Numbers that are summed at a time; two blocks of float32 stay in a core's cache."""


class _MergedLinear(torch.autograd.Function):
    """`inputs @ merged.T + bias`, whose gradient goes to A and B as if it were `inputs @ (W + scale B A).T`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, merged: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scale: float
    ) -> Tensor:
        ctx.save_for_backward(inputs, merged, down, up)
        ctx.scale = scale
        return linear(inputs, merged, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, merged, down, up = ctx.saved_tensors
        kind = inputs.dtype
        outer = gradients[0].reshape(-1, merged.shape[0])
        rows = inputs.reshape(-1, merged.shape[1])
        to_inputs = (outer @ merged).view_as(inputs) if ctx.needs_input_grad[0] else None
        to_up = outer.T @ (rows @ down.to(kind).T)
        to_down = (outer @ up.to(kind)).T @ rows
        return to_inputs, None, None, to_down.to(down.dtype) * ctx.scale, to_up.to(up.dtype) * ctx.scale, None


def merge_pair(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> None:
    """Add `scale * up @ down` to `weight` in place, with the same bytes on every machine.

    A matrix product sums in the order that suits a processor. Here the products of one inner index after the other are
    added in float32 by elementwise operations, which IEEE 754 fixes to the last bit, and the sum is rounded once. The
    order is that of the bf16 instructions of AVX512, with which the published models were merged.

    Args:
        weight: [out, in].
        down: [rank, in], taken in the type of `weight`.
        up: [out, rank], likewise.
        scale: alpha / rank.
    """
    down, up = (factor.detach().to(weight.dtype).float() for factor in (down, up))
    rank, width = down.shape
    order = [k for pair in range(0, rank, 2) for k in (pair + 1, pair) if k < rank]
    rows = max(1, _BLOCK // width)
    for block, factors in zip(torch.split(weight, rows), torch.split(up, rows), strict=True):
        total = torch.zeros(block.shape, dtype=torch.float32, device=block.device)
        product = torch.empty_like(total)
        for k in order:  # two operations: one that multiplies and adds rounds differently where it is fused
            total.add_(torch.mul(factors[:, k, None], down[k], out=product))
        block.copy_(block.float() + total.mul_(scale))


@dataclass(eq=False)
class FusedLinear:
    """Forward of one LoRA layer.

    Attributes:
        weight: frozen W [out, in].
        bias: frozen bias [out], or None.
        down: A [rank, in], trained.
        up: B [out, rank], trained.
        scale: alpha / rank.
        merged: W + scale B A in the type of W; absent until `refresh`, and stale after each change of A or B.
    """

    weight: Tensor
    bias: Tensor | None
    down: Parameter
    up: Parameter
    scale: float
    merged: Tensor = field(init=False)

    def refresh(self) -> None:
        """Rebuild `merged` from the current A and B."""
        with torch.no_grad():
            kind = self.weight.dtype
            self.merged = torch.addmm(self.weight, self.up.to(kind), self.down.to(kind), alpha=self.scale)

    def __call__(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """[..., in] -> [..., out]; further arguments of PEFT's forward are for features not used here."""
        apply: Any = _MergedLinear.apply
        result: Tensor = apply(inputs, self.merged, self.bias, self.down, self.up, self.scale)
        return result

    def write_back(self) -> None:
        """Write W + scale B A into the frozen weight."""
        merge_pair(self.weight, self.down, self.up, self.scale)


@dataclass(frozen=True, slots=True)
class Fused:
    """The replaced forwards of a model.

    Attributes:
        layers: one for each LoRA layer.
        tokens: one for each matrix with trained rows; tied matrices share their rows.
        activation: of an activated LoRA; to be marked before each forward.
    """

    layers: tuple[FusedLinear | ActivatedLinear, ...] = ()
    tokens: tuple[TokenRows, ...] = ()
    activation: Activation | None = None

    def refresh(self) -> None:
        """Call after each change of A or B."""
        for layer in self.layers:
            layer.refresh()

    def write_back(self) -> None:
        """Write the trained state into the frozen weights: what a merged checkpoint holds."""
        with torch.no_grad():
            for layer in self.layers:
                layer.write_back()
            for tokens in self.tokens:
                tokens.write_back()


def fuse(model: Any) -> Fused:
    """Replace the forwards of a PEFT model that has exactly one LoRA adapter, without dropout.

    Where its configuration has invocation tokens, the pairs act from there on only.
    """
    fused = trained_parts(model)
    fused.refresh()
    return fused


def trained_parts(model: Any) -> Fused:
    """`fuse` before `refresh`: enough to write the trained state back, without a second copy of the weights."""
    from peft.tuners.lora import Linear
    from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

    layers: list[FusedLinear | ActivatedLinear] = []
    matrices = []
    (settings,) = model.peft_config.values()
    invocation = getattr(settings, "alora_invocation_tokens", None)
    activation = Activation(tuple(invocation)) if invocation else None
    for module in model.modules():
        if isinstance(module, Linear):
            (name,) = module.active_adapters
            base = module.base_layer
            weight = base.weight.detach().T if module.fan_in_fan_out else base.weight.detach()
            bias = None if base.bias is None else base.bias.detach()
            down, up, scale = module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name]
            layer = (
                FusedLinear(weight, bias, down, up, scale)
                if activation is None
                else ActivatedLinear(weight, bias, down, up, scale, activation)
            )
            module.forward = layer
            layers.append(layer)
        elif isinstance(module, TrainableTokensLayer):
            (name,) = module.active_adapters
            base = module.get_base_layer()
            rows = module.trainable_tokens_delta[name]
            rows.data = rows.data.float()
            tokens = TokenRows(base.weight.detach(), rows, token_ids(module.token_indices[name], base.weight))
            if replaceable(base):
                module.forward = tokens.forward_of(base)
            matrices.append(tokens)
    return Fused(tuple(layers), tuple(matrices), activation)
