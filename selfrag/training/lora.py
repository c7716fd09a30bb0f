"""How LoRA pairs and token rows compute while they train.

PEFT owns parameters, files and merging. These forwards replace PEFT's. A LoRA layer multiplies once by `W + scale * B
A`, which is rebuilt after each optimizer step. Trained token rows are kept beside their frozen matrix, which is never
copied. An activated LoRA (aLoRA, arXiv 2504.12397) acts from its invocation tokens on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import embedding, linear

from selfrag.common.errors import UserError
from selfrag.common.tensor_files import BFLOAT16
from selfrag.common.tensor_writing import merge_pair
from selfrag.engines.adapters import invocation_start


@dataclass(eq=False)
class Activation:
    """Where the adapter acts in the rows at hand; each thread computes rows of its own."""

    invocation: tuple[int, ...]  # ids that switch it on
    _local: threading.local = field(default_factory=threading.local, init=False)

    def mark(self, ids: Tensor, row_lengths: Sequence[int]) -> None:
        """Find the positions of packed rows [1, T], for this thread's next forward.

        Raises:
            UserError: a row lacks the invocation; the adapter would silently learn nothing from it.
        """
        active: list[int] = []
        start = 0
        for row in torch.split(ids[0], list(row_lengths)):
            first = invocation_start(row.tolist(), self.invocation)
            if first is None:
                raise UserError(
                    f"a row lacks the invocation tokens {list(self.invocation)}: it would train nothing"
                )
            active.extend(range(start + first, start + len(row)))
            start += len(row)
        self._local.active = torch.tensor(active, device=ids.device)

    @property
    def positions(self) -> Tensor:
        """Indices of the positions where the adapter acts, in order [n]."""
        positions: Tensor = self._local.active
        return positions


@dataclass(eq=False)
class LoraPair:
    """A layer and its LoRA pair."""

    weight: Tensor  # frozen W [out, in]
    bias: Tensor | None  # frozen bias [out], or None
    down: Parameter  # A [rank, in], trained
    up: Parameter  # B [out, rank], trained
    scale: float  # alpha / rank


@dataclass(eq=False)
class ActivatedLinear(LoraPair):
    """Forward of one layer: the base everywhere, the pair at the active positions only."""

    activation: Activation  # says where

    def refresh(self) -> None:
        """Do nothing: an activated LoRA has no merged weight to cache."""

    def write_back(self) -> None:
        """Raise UserError, because no single matrix is equivalent to an activated LoRA."""
        raise UserError("an activated LoRA cannot be merged; save it as an adapter")

    def __call__(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """[1, T, in] -> [1, T, out]."""
        outputs = linear(inputs, self.weight, self.bias)
        where = self.activation.positions
        chosen = inputs.index_select(1, where)
        kind = inputs.dtype
        added = (
            linear(linear(chosen, self.down.to(kind)), self.up.to(kind)) * self.scale
        )
        return outputs.index_add(1, where, added)


@dataclass(eq=False)
class TokenRows:
    """Trained rows beside their matrix."""

    weight: Tensor  # the matrix [vocabulary, width]; its own rows at `ids` are not used
    rows: Parameter  # trained rows [n, width], in float32
    ids: Tensor  # their token ids [n]
    # token id to row number, -1 for all other tokens [vocabulary]
    position: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.position = torch.full(
            (self.weight.shape[0],), -1, device=self.weight.device
        )
        self.position[self.ids] = torch.arange(len(self.ids), device=self.weight.device)

    def embed(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """Token ids [...] -> input rows [..., width]."""
        rows = embedding(inputs, self.weight)
        position = self.position[inputs]
        trained = position >= 0
        return rows.index_put((trained,), self.rows[position[trained]].to(rows.dtype))

    def logits(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """Hidden states [n, width] -> scores of the whole vocabulary [n, vocabulary]."""
        return linear(hidden, self.weight).index_copy(
            -1, self.ids, linear(hidden, self.rows.to(hidden.dtype))
        )

    def forward_of(self, module: torch.nn.Module) -> Callable[..., Tensor]:
        """Return what takes the place of the forward of `module`, which must be `replaceable`."""
        if isinstance(module, torch.nn.Embedding):
            return self.embed
        return self.logits

    def write_back(self) -> None:
        """Write the trained rows into the matrix."""
        with torch.no_grad():
            self.weight[self.ids] = self.rows.to(self.weight.dtype)


def replaceable(module: torch.nn.Module) -> bool:
    """Return whether a module is a plain lookup or product; scaled embeddings and heads with bias are not."""
    return type(module) is torch.nn.Embedding or (
        type(module) is torch.nn.Linear and module.bias is None
    )


def token_ids(ids: Sequence[int], like: Tensor) -> Tensor:
    """Ids as a tensor where `like` is."""
    return torch.tensor(list(ids), device=like.device)


class _MergedLinear(torch.autograd.Function):
    """`inputs @ merged.T + bias`, whose gradient goes to A and B as if it were `inputs @ (W + scale B A).T`."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        merged: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scale: float,
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
        to_inputs = (
            (outer @ merged).view_as(inputs) if ctx.needs_input_grad[0] else None
        )
        to_up = outer.T @ (rows @ down.to(kind).T)
        to_down = (outer @ up.to(kind)).T @ rows
        return (
            to_inputs,
            None,
            None,
            to_down.to(down.dtype) * ctx.scale,
            to_up.to(up.dtype) * ctx.scale,
            None,
        )


def merge_into(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> None:
    """Add `scale * up @ down` to a weight in place; see `merge_pair`."""
    merged = _array(weight).copy()
    merge_pair(
        merged, _array(down.to(weight.dtype)), _array(up.to(weight.dtype)), scale
    )
    bits = torch.from_numpy(merged.view(f"i{merged.itemsize}"))
    weight.copy_(bits.view(weight.dtype))


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return the numbers of a tensor as an array; numpy does not take bfloat16 from torch itself."""
    values = tensor.detach().cpu().contiguous()
    if values.dtype is not torch.bfloat16:
        array: NDArray[Any] = values.numpy()
        return array
    return values.view(torch.int16).numpy().view(BFLOAT16)


@dataclass(eq=False)
class FusedLinear(LoraPair):
    """Forward of one LoRA layer."""

    # W + scale B A in the type of W; absent until `refresh`, and stale after each change of A or B
    merged: Tensor = field(init=False)

    def refresh(self) -> None:
        """Rebuild `merged` from the current A and B."""
        with torch.no_grad():
            kind = self.weight.dtype
            self.merged = torch.addmm(
                self.weight, self.up.to(kind), self.down.to(kind), alpha=self.scale
            )

    def __call__(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """[..., in] -> [..., out]; further arguments of PEFT's forward are for features not used here."""
        apply: Any = _MergedLinear.apply
        result: Tensor = apply(
            inputs, self.merged, self.bias, self.down, self.up, self.scale
        )
        return result

    def write_back(self) -> None:
        """Write W + scale B A into the frozen weight."""
        merge_into(self.weight, self.down, self.up, self.scale)


@dataclass(frozen=True, slots=True)
class Fused:
    """The replaced forwards of a model."""

    layers: tuple[FusedLinear | ActivatedLinear, ...] = ()  # one for each LoRA layer
    # one for each matrix with trained rows; tied matrices share their rows
    tokens: tuple[TokenRows, ...] = ()
    # of an activated LoRA; to be marked before each forward
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
    """`fuse` without `refresh`: can write the trained state back, and needs no second copy of the weights."""
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
            weight = base.weight.detach()
            if module.fan_in_fan_out:
                weight = weight.T
            pair = (
                weight,
                None if base.bias is None else base.bias.detach(),
                module.lora_A[name].weight,
                module.lora_B[name].weight,
                module.scaling[name],
            )
            layer: FusedLinear | ActivatedLinear = FusedLinear(*pair)
            if activation is not None:
                layer = ActivatedLinear(*pair, activation)
            module.forward = layer
            layers.append(layer)
        elif isinstance(module, TrainableTokensLayer):
            (name,) = module.active_adapters
            base = module.get_base_layer()
            rows = module.trainable_tokens_delta[name]
            rows.data = rows.data.float()
            tokens = TokenRows(
                base.weight.detach(),
                rows,
                token_ids(module.token_indices[name], base.weight),
            )
            if replaceable(base):
                module.forward = tokens.forward_of(base)
            matrices.append(tokens)
    return Fused(tuple(layers), tuple(matrices), activation)
