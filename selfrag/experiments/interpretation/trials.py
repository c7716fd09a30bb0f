"""A trial: one item in one cell, ready to be asked, and what is recorded of the reply. Pure; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.passage import Passage
from selfrag.evaluation.items import Item
from selfrag.experiments.interpretation.asking import Asking
from selfrag.experiments.interpretation.claims import credited, followed_example, order_claim
from selfrag.experiments.interpretation.context_ids import contexts_of
from selfrag.experiments.interpretation.grid import Cell, arranged
from selfrag.experiments.interpretation.questions import example
from selfrag.experiments.interpretation.replies import Reply
from selfrag.experiments.interpretation.template import Context, Example


@dataclass(frozen=True, slots=True)
class Showing:
    """How passages are shown, the same in all cells.

    Attributes:
        seed: of the random order.
        example_contexts: passages of a demonstration; the cut-off of the cell is meant for the question.
        words: a passage is cut after so many; None keeps it whole.
    """

    seed: int = 0
    example_contexts: int = 3
    words: int | None = 200

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for manifests."""
        return {"seed": self.seed, "example_contexts": self.example_contexts, "words": self.words}


@dataclass(frozen=True, slots=True)
class Trial:
    """What is asked.

    Attributes:
        item: the question.
        asked: the strategy.
        passages: as shown, in order.
        examples: demonstrations.
        words: a passage is cut after so many.
    """

    item: Item
    asked: Asking
    passages: tuple[Passage, ...]
    examples: tuple[Example, ...] = ()
    words: int | None = None

    @property
    def question(self) -> str:
        """Without a task's wording, where the two can be told apart."""
        return self.item.query or self.item.instruction

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The passages as the prompt shows them."""
        return contexts_of(self.passages, self.words)

    @property
    def passage_ids(self) -> dict[str, str]:
        """Context id to passage id."""
        return {c.id: p.id for c, p in zip(self.contexts, self.passages, strict=True)}


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer wrote.

    Attributes:
        text: the generation.
        finish: why it ended, as the engine or server says.
        usage: prompt and generated tokens, requests.
        cached_tokens: of the prompt.
        judgments: of a model that judges its own segments: for each its text, context id and probabilities.
    """

    text: str
    finish: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    cached_tokens: int = 0
    judgments: tuple[Mapping[str, Any], ...] = ()


def trial(item: Item, cell: Cell, demonstrations: Sequence[Item], showing: Showing) -> Trial:
    """An item in a cell."""
    shown = arranged(item.passages, cell.cutoff, cell.order, f"{showing.seed}:{item.id}")
    used = demonstrations[: cell.examples]
    examples = tuple(example(one, showing.example_contexts, showing.words) for one in used)
    return Trial(item, cell.asked, shown, examples, showing.words)


def reply_dict(made: Trial, text: str, written: Written, reply: Reply) -> dict[str, Any]:
    """What a record keeps of a reply: the text as it came, its parts, and what the explanation claims.

    Contexts are recorded by the ids of their passages.
    """
    ids = made.passage_ids
    counterfactual = made.asked.name == "counterfactual"
    return {
        "text": text,
        "finish": written.finish,
        "answer": reply.answer,
        "explanation": reply.explanation,
        "read": [passage.id for passage in made.passages],
        "cited": [ids[name] for name in reply.cited],
        "wrong": list(reply.wrong),
        "named": [ids[name] for name in reply.named],
        "credited": [ids[name] for name in credited(reply)],
        "claim": order_claim(reply) if counterfactual else None,
        "followed": followed_example(reply) if made.asked.needs_examples else None,
        "ran_on": reply.ran_on,
        "usage": dict(written.usage),
        **({"judgments": [dict(one) for one in written.judgments]} if written.judgments else {}),
    }
