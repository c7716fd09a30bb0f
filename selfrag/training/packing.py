"""Examples laid end to end as tensors, with one entry for each position that has a loss. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from selfrag.training.targets import MASKED, Example, Group


@dataclass(frozen=True, slots=True)
class Weighting:
    """Share of each kind of target position in the loss. Reflection tokens are few and drown at weight 1.

    Attributes:
        text: an ordinary token of a text part of `text_length` tokens.
        retrieve: a Retrieve token.
        isrel: an IsRel token.
        issup: an IsSup token.
        isuse: an IsUse token.
        marker: `<paragraph>` or `</paragraph>`.
        eos: the end of the answer.
        text_length: text tokens of a row with n of them weigh `text * sqrt(text_length / n)` each, so that a row of
            200 tokens does not count 50 times a row of 4. None: they weigh `text` each.
    """

    text: float = 1.0
    retrieve: float = 3.0
    isrel: float = 6.0
    issup: float = 3.0
    isuse: float = 2.0
    marker: float = 0.2
    eos: float = 1.0
    text_length: float | None = 10.0

    @classmethod
    def uniform(cls) -> Weighting:
        """Every target position alike: the plain language-model loss of the paper."""
        return cls(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, None)

    def of_group(self) -> dict[Group, float]:
        """Weight of a position by its group; text before the length correction."""
        return {
            Group.TEXT: self.text,
            Group.RETRIEVE: self.retrieve,
            Group.ISREL: self.isrel,
            Group.ISSUP: self.issup,
            Group.ISUSE: self.isuse,
            Group.MARKER: self.marker,
            Group.EOS: self.eos,
        }


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows end to end; T tokens, n target positions.

    Attributes:
        ids: [1, T].
        positions: [1, T], from 0 in each row.
        row_lengths: tokens of each row.
        predictors: [n] index of the token *before* each target, whose hidden state predicts it.
        targets: [n] token ids.
        groups: [n] `Group` of each target.
        weights: [n] share of the loss, not normalised.
    """

    ids: Tensor
    positions: Tensor
    row_lengths: list[int]
    predictors: Tensor
    targets: Tensor
    groups: Tensor
    weights: Tensor

    def to(self, device: Any) -> Pack:
        """The same with the tensors that the model reads on `device`."""
        names = ("ids", "positions", "predictors", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pack(examples: Sequence[Example], weighting: Weighting) -> Pack:
    """Lay examples end to end. A first token is never a target, so no row is predicted from the row before it."""
    predictors: list[int] = []
    weights: list[float] = []
    targets: list[int] = []
    groups: list[int] = []
    start = 0
    for example in examples:
        where = _where(example)
        predictors.extend(start + i - 1 for i in where)
        targets.extend(example.labels[i] for i in where)
        groups.extend(int(example.groups[i]) for i in where)
        weights.extend(_weights(example, where, weighting))
        start += len(example)
    return Pack(
        ids=torch.tensor([[i for example in examples for i in example.ids]]),
        positions=torch.cat([torch.arange(len(example)) for example in examples])[None],
        row_lengths=[len(example) for example in examples],
        predictors=torch.tensor(predictors),
        targets=torch.tensor(targets),
        groups=torch.tensor(groups),
        weights=torch.tensor(weights),
    )


def apart(whole: Pack) -> list[Pack]:
    """The rows of a pack, each as a pack of its own; rows without a target are left out."""
    found = []
    start = 0
    for length in whole.row_lengths:
        end = start + length
        here = (whole.predictors >= start) & (whole.predictors < end)
        if bool(here.any()):
            found.append(
                Pack(
                    whole.ids[:, start:end],
                    whole.positions[:, start:end],
                    [length],
                    whole.predictors[here] - start,
                    whole.targets[here],
                    whole.groups[here.to(whole.groups.device)],
                    whole.weights[here.to(whole.weights.device)],
                )
            )
        start = end
    return found


def weight_of(example: Example, weighting: Weighting) -> float:
    """Sum of the weights of an example's target positions."""
    return sum(_weights(example, _where(example), weighting))


def _where(example: Example) -> list[int]:
    """Positions with a loss."""
    return [i for i, label in enumerate(example.labels) if i > 0 and label != MASKED]


def _weights(example: Example, where: Sequence[int], weighting: Weighting) -> list[float]:
    of_group = weighting.of_group()
    texts = sum(1 for i in where if example.groups[i] == Group.TEXT)
    factor = (weighting.text_length / texts) ** 0.5 if texts and weighting.text_length is not None else 1.0
    return [
        of_group[group] * example.weight * (factor if group is Group.TEXT else 1.0)
        for group in (Group(example.groups[i]) for i in where)
    ]
