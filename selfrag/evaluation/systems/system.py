"""`System`: what a comparison compares, a value that turns an item into a decoder. Knows no engine and no file."""

from __future__ import annotations

from typing import Any, Protocol

from selfrag.decoding.tree import Decoder
from selfrag.evaluation.items import Item
from selfrag.evaluation.tasks.task import Task


class System(Protocol):
    """One way of answering, bound to a model's tokenizer."""

    @property
    def cites_all(self) -> bool:
        """Whether its answers rest on every passage it was shown, because it makes no citations of its own."""
        ...

    def decoder(self, item: Item, task: Task) -> Decoder:
        """Answer one item within the task's budget, from the item's passages."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides its answers, apart from the model, as plain values."""
        ...
