"""Models fine-tuned on the same pairs without reflection tokens: with no passage, or always with the first.

Baseline (ii) is the paper's Llama2-FT, baseline (iii) follows SAIL. Both use the layout of their training rows
(`selfrag.training.baselines`): instruction prompt, then the passage between its markers, then the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selfrag.decoding.tree import Decoder
from selfrag.evaluation.items import Item
from selfrag.evaluation.systems.plain import Prompt, choose, write
from selfrag.evaluation.tasks.choices import choices
from selfrag.evaluation.tasks.task import Task
from selfrag.prompting import Prompting


@dataclass(frozen=True, slots=True)
class FineTuned:
    """A fine-tuned model that never criticises.

    Attributes:
        prompting: codec, vocabulary (for the markers around a passage) and layout of the model.
        passages: how many of the item's passages stand before the answer; 0 for (ii), 1 for (iii).
        passage_tokens: a passage is cut here.
    """

    prompting: Prompting
    passages: int
    passage_tokens: int = 256
    cites_all: bool = True

    def decoder(self, item: Item, task: Task) -> Decoder:
        """One greedy answer, or the most probable option."""
        prompt = self.prompt(item)
        if item.options:
            found, eos_id = choices(item), self.prompting.vocabulary.eos_id
            return (yield from choose(prompt, self.prompting.codec, found.surfaces, eos_id, found.length))
        return (yield from write(prompt, self.prompting.codec, task.new_tokens))

    def prompt(self, item: Item) -> Prompt:
        """The prompt of the training rows and the evidence between its markers."""
        used = item.passages[: self.passages]
        evidence = [self.prompting.evidence(passage, self.passage_tokens) for passage in used]
        ids = (*self.prompting.prompt(item.instruction), *(i for part in evidence for i in part.ids))
        return Prompt(item.instruction, ids, used, sum(part.dropped_tokens for part in evidence))

    def as_dict(self) -> dict[str, Any]:
        """Settings."""
        return {
            "kind": "finetuned",
            "passages": self.passages,
            "passage_tokens": self.passage_tokens,
            "layout": self.prompting.layout.name,
        }
