"""Accuracy on closed sets: the option that was chosen against the right one. Pure."""

from __future__ import annotations

from selfrag.experiments.items import Item
from selfrag.experiments.metrics.metric import Metric, mean_of
from selfrag.experiments.metrics.output import Output
from selfrag.experiments.tasks.choices import choices


def option_accuracy(item: Item, output: Output) -> float | None:
    """1 if the chosen option is the right one, letter for letter; None if the item has no options."""
    return float(output.text == choices(item).right) if item.options else None


ACCURACY = Metric("accuracy", mean_of(option_accuracy))
