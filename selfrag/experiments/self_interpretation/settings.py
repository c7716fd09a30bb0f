"""The settings of a run of the grid. Importing them loads nothing of a model or an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfrag.interface import check_int

Relevance = Literal["gold", "answers"]
ORDERS = ("ranked", "top-last", "random", "reversed")


@dataclass(frozen=True, slots=True)
class GridSettings:
    """The axes of the grid, by default the paper's.

    Attributes:
        cutoffs: passages to show; 3, 5 and 10 by default.
        orders: order of the passages: ranked, top-last, random (these by default), reversed.
        examples: demonstrations in the prompt; 0, 1 and 2 by default.
        prompts: basic, direct, counterfactual (all three by default), examples.
    """

    cutoffs: tuple[int, ...] = (3, 5, 10)
    orders: tuple[str, ...] = ORDERS[:3]
    examples: tuple[int, ...] = (0, 1, 2)
    prompts: tuple[str, ...] = ("basic", "direct", "counterfactual")


PAPER = GridSettings()


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """Which questions are drawn from a file, and how their passages are shown and judged.

    Attributes:
        limit: questions to draw; 0 for all.
        seed: seed of the draw and of the random order.
        index: index to search for questions without passages: a folder, or demo.
        pool: search the passages of all drawn questions with this encoder, as the paper does: demo, or a model.
        relevance: relevant passages: those that the file calls gold, or those that hold an answer.
        example_contexts: passages per demonstration.
        words: most words of a passage; 0 for all.
    """

    limit: int = 60
    seed: int = 0
    index: str | None = None
    pool: str | None = None
    relevance: Relevance = "gold"
    example_contexts: int = 3
    words: int = 200

    def __post_init__(self) -> None:
        check_int("limit", self.limit, 0)
        check_int("example_contexts", self.example_contexts, 0)
        check_int("words", self.words, 0)


DRAW = DrawSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySettings:
    """How a reply is asked for.

    Attributes:
        endpoint: URL of an OpenAI-compatible server, in place of an engine.
        layout: how the prompt is put; reflective: Self-RAG decoding, no prompt.
        max_tokens: most new tokens of a reply.
    """

    endpoint: str | None = None
    layout: Literal["auto", "chat", "selfrag", "plain", "reflective"] = "auto"
    max_tokens: int = 200

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens)
