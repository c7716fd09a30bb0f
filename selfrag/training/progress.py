"""Loss and accuracy of a step, by group and by label: one number would hide that labels drown in text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from selfrag.training.packing import Pack
from selfrag.training.targets import Group

_BY_LABEL = (Group.RETRIEVE, Group.ISREL, Group.ISSUP, Group.ISUSE)


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over target positions; two tallies add up.

    Attributes:
        loss_sum: weighted loss.
        weight_sum: weights.
        count: positions by group.
        losses: unweighted loss by group.
        hits: positions by group where the target was the most probable token.
        label_count: positions by target id, reflection groups only.
        label_hits: hits by target id.
    """

    loss_sum: float = 0.0
    weight_sum: float = 0.0
    count: Counter[int] = field(default_factory=Counter)
    losses: Counter[int] = field(default_factory=Counter)
    hits: Counter[int] = field(default_factory=Counter)
    label_count: Counter[int] = field(default_factory=Counter)
    label_hits: Counter[int] = field(default_factory=Counter)

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
