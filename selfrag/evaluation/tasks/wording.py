"""How a question is put to a model: the words before it and how they are joined. Pure; byte exact.

Sources: Self-RAG's paper, Table 5, and the joins of its code, which differ between tasks and from its training data.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from typing import Literal

from selfrag.evaluation.items import TASK_INPUT, Item

TRAINING_JOIN = TASK_INPUT
"""Between instruction and question in the rows that this project trains on."""
ARC_JOIN = "\n\n### Input:\n"
"""The official code's for ARC-Challenge, and for all baselines."""
ASQA_JOIN = "## Input:\n\n"
"""The official code's for ASQA: no line break before it."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What stands around a question.

    Attributes:
        instruction: words before the question; empty asks the question alone.
        join: between them.
        ask: `query` puts the question into the wording; `given` leaves what the file says as it is.
        letters: fewest options that are shown; the official code shows an empty `D: ` where ARC has three.
    """

    instruction: str = ""
    join: str = TRAINING_JOIN
    ask: Literal["query", "given"] = "query"
    letters: int = 0

    def worded(self, item: Item) -> Item:
        """The item, asked in these words."""
        return item if self.ask == "given" else replace(item, instruction=self.text(item))

    def text(self, item: Item) -> str:
        """Instruction, question, and lettered options if the item has any that are not its words themselves."""
        lead = f"{self.instruction}{self.join}" if self.instruction else ""
        lettered = bool(item.options) and item.label not in item.options
        shown = [*item.options, *[""] * (self.letters - len(item.options))] if lettered else []
        options = [f"\n{letter}: {text}" for letter, text in zip(string.ascii_uppercase, shown, strict=False)]
        return f"{lead}{item.query}{''.join(options)}"
