"""Linear layers of an encoder whose products are of 8-bit integers, for CPUs without bfloat16 instructions.

Weights are rounded once, with one scale for each output; the inputs of a layer at each forward, with one scale for each
token. So the vector of a text does not depend on the texts beside it in a batch. Weights have 7 bits and a sign at most
63: two products then fit into the 16 bits in which a CPU without VNNI adds them, so that its sums are right as well.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor, nn

from selfrag.common.errors import UserError

_WEIGHT_STEPS = 63
_INPUT_STEPS = 127
_ZERO = 128  # what stands for 0 among the unsigned inputs
_SMALLEST = 1e-12


def has_int8() -> bool:
    """Return whether torch has oneDNN's integer products on this machine."""
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.onednn, "qlinear_prepack")
    )


class Int8Linear(nn.Module):
    """`linear` with rounded weights and inputs; the sums, the bias and the output are float32.

    Attributes:
        weight: int8 in oneDNN's layout. Some models look at its type before they convert their inputs.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        largest = weight.abs().amax(dim=1)
        scales = (largest / _WEIGHT_STEPS).clamp(min=_SMALLEST)  # [out]
        rounded = (weight / scales[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._scales = scales
        self._zeros = torch.zeros(len(scales), dtype=torch.int32)
        self._bias = torch.zeros(len(scales))
        if linear.bias is not None:
            self._bias = linear.bias.detach().float()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs [..., out] of inputs [..., in]."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
        steps = (largest / _INPUT_STEPS).clamp_(min=_SMALLEST)  # [rows, 1]
        # the conversion cuts off, so half a step more rounds to the nearest
        rounded = (rows / steps).add_(_ZERO + 0.5).to(torch.uint8)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded,
            1.0,
            _ZERO,
            self.weight,
            self._scales,
            self._zeros,
            None,  # the bias follows the scales of the tokens
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "none",
        )
        torch.addcmul(self._bias, sums, steps, out=sums)
        return sums.reshape(*inputs.shape[:-1], sums.shape[-1])


def quantize_layers(model: nn.Module) -> None:
    """Put an `Int8Linear` in place of every linear layer of a model in float32 on the CPU.

    Raises:
        UserError: this machine or this torch has no such products.
    """
    if not has_int8():
        raise UserError(
            "precision int8 needs an x86 CPU and a torch with oneDNN; give float32 or auto"
        )
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, Int8Linear(child))
        else:
            quantize_layers(child)
