"""Losses at target positions of packed rows, and their means by group and by label."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from selfrag.training.packing import Pack, apart
from selfrag.training.rows import Group


def target_losses(
    model: Any, pack: Pack, *, packed: bool = True, keeps: bool = True, rowwise: bool = False
) -> tuple[Tensor, Tensor]:
    """Cross entropy and hit of every target position; logits are made there and nowhere else.

    Args:
        model: a causal language model, or what PEFT, DDP, FSDP or DeepSpeed made of it.
        pack: on the model's device.
        packed: the model runs `attention.packed_attention`; otherwise an attention of transformers, which reads the
            borders of the rows off the positions.
        keeps: the model's forward has `logits_to_keep`; see `keeps_logits`.
        rowwise: one row after the other, for models whose rows would see each other in a pack; see `isolation.py`.

    Returns:
        Losses [n] in float32 with a gradient, and whether the target was the most probable token [n].
    """
    if rowwise:
        parts = [_of_row(model, row, keeps=keeps) for row in apart(pack)]
        return torch.cat([losses for losses, _ in parts]), torch.cat([hits for _, hits in parts])
    options: dict[str, Any] = {"row_lengths": pack.row_lengths} if packed else {}
    if keeps:
        options["logits_to_keep"] = pack.predictors
    logits = model(input_ids=pack.ids, position_ids=pack.positions, use_cache=False, **options).logits[0]
    return _measured(logits if keeps else logits[pack.predictors], pack)


def _of_row(model: Any, row: Pack, *, keeps: bool) -> tuple[Tensor, Tensor]:
    """A row alone, as any causal language model takes it: positions and borders are its own business."""
    options: dict[str, Any] = {"logits_to_keep": row.predictors} if keeps else {}
    mask = torch.ones_like(row.ids)
    logits = model(input_ids=row.ids, attention_mask=mask, use_cache=False, **options).logits[0]
    return _measured(logits if keeps else logits[row.predictors], row)


def _measured(logits: Tensor, pack: Pack) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    return cross_entropy(logits, pack.targets, reduction="none"), logits.detach().argmax(-1) == pack.targets


def keeps_logits(causal: Any) -> bool:
    """Whether a causal language model can make logits at chosen positions only; nearly all of transformers' can."""
    return "logits_to_keep" in inspect.signature(type(causal).forward).parameters


_BY_LABEL = (Group.RETRIEVE, Group.ISREL, Group.ISSUP, Group.ISUSE)


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over target positions; two tallies add up."""

    loss_sum: float = 0.0  # weighted loss
    weight_sum: float = 0.0  # weights
    count: Counter[int] = field(default_factory=Counter)  # positions by group
    losses: Counter[int] = field(default_factory=Counter)  # unweighted loss by group
    # positions by group where the target was the most probable token
    hits: Counter[int] = field(default_factory=Counter)
    label_count: Counter[int] = field(default_factory=Counter)  # positions by target id, reflection groups only
    label_hits: Counter[int] = field(default_factory=Counter)  # hits by target id

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.loss_sum + other.loss_sum,
            self.weight_sum + other.weight_sum,
            self.count + other.count,
            self.losses + other.losses,
            self.hits + other.hits,
            self.label_count + other.label_count,
            self.label_hits + other.label_hits,
        )

    @property
    def loss(self) -> float:
        """Weighted mean loss, what the optimiser sees."""
        return self.loss_sum / self.weight_sum if self.weight_sum else 0.0

    def as_dict(self, tokenizer: Any) -> dict[str, Any]:
        """`loss`, then per group and per label the count, the mean loss and the accuracy."""
        groups = {
            Group(g).name.lower(): {"n": n, "loss": self.losses[g] / n, "accuracy": self.hits[g] / n}
            for g, n in sorted(self.count.items())
        }
        labels = {
            str(tokenizer.convert_ids_to_tokens(i)): {"n": n, "accuracy": self.label_hits[i] / n}
            for i, n in sorted(self.label_count.items())
        }
        return {"loss": self.loss, "groups": groups, "labels": labels}


def measure(load: Pack, losses: Tensor, hits: Tensor) -> Tally:
    """Tally of one pack from its losses [n] and hits [n]."""
    tally = Tally(float((losses * load.weights).sum()), float(load.weights.sum()))
    columns = (load.groups.tolist(), load.targets.tolist(), losses.tolist(), hits.tolist())
    for group, target, loss, hit in zip(*columns, strict=True):
        tally.count[group] += 1
        tally.losses[group] += loss
        tally.hits[group] += hit
        if group in _BY_LABEL:
            tally.label_count[target] += 1
            tally.label_hits[target] += hit
    return tally
