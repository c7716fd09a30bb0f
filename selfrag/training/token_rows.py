"""A few rows of a vocabulary matrix as a parameter of their own, with their own learning rate.

The matrix itself is read in place: it is neither copied in each forward nor, where it is frozen, given a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import embedding, linear


@dataclass(eq=False)
class TokenRows:
    """Trained rows beside their matrix.

    Attributes:
        weight: the matrix [vocabulary, width]; its own rows at `ids` are not used.
        rows: trained rows [n, width], in float32.
        ids: their token ids [n].
        position: token id to row number, -1 for all other tokens [vocabulary].
    """

    weight: Tensor
    rows: Parameter
    ids: Tensor
    position: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.position = torch.full((self.weight.shape[0],), -1, device=self.weight.device)
        self.position[self.ids] = torch.arange(len(self.ids), device=self.weight.device)

    def embed(self, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """Token ids [...] -> input rows [..., width]."""
        found = embedding(inputs, self.weight)
        position = self.position[inputs]
        trained = position >= 0
        return found.index_put((trained,), self.rows[position[trained]].to(found.dtype))

    def logits(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """Hidden states [n, width] -> scores of the whole vocabulary [n, vocabulary]."""
        return linear(hidden, self.weight).index_copy(-1, self.ids, linear(hidden, self.rows.to(hidden.dtype)))

    def forward_of(self, module: torch.nn.Module) -> Callable[..., Tensor]:
        """What takes the place of the forward of `module`, which must be `replaceable`."""
        return self.embed if isinstance(module, torch.nn.Embedding) else self.logits

    def write_back(self) -> None:
        """Write the trained rows into the matrix."""
        with torch.no_grad():
            self.weight[self.ids] = self.rows.to(self.weight.dtype)


def replaceable(module: torch.nn.Module) -> bool:
    """Whether a module is a plain lookup or a plain product; scaled embeddings and heads with bias are not."""
    return type(module) is torch.nn.Embedding or (type(module) is torch.nn.Linear and module.bias is None)


def token_ids(ids: Sequence[int], like: Tensor) -> Tensor:
    """Ids as a tensor where `like` is."""
    return torch.tensor(list(ids), device=like.device)
