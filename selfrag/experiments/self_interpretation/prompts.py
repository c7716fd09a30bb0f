"""Prompting strategies and the prompt of the paper: Table 1 as a template (`table1.j2`).

Its tags around examples are a parameter: the table has come down as text in which they read `(example)`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2

from selfrag.interface import Passage, UserError
from selfrag.judges.layout import one_line


@dataclass(frozen=True, slots=True)
class Asking:
    """A prompting strategy: what is asked about the answer."""

    name: str
    question: str = ""  # [XAI Q.] of Table 1; empty for the basic prompt
    needs_examples: bool = False
    table: int | None = None  # number of the paper's table of results

    @property
    def explains(self) -> bool:
        """Return whether an explanation is asked for."""
        return bool(self.question)


BASIC = Asking("basic", table=2)
DIRECT = Asking(
    "direct", "Why do you think that this is the answer to the question?", table=3
)
COUNTERFACTUAL = Asking(
    "counterfactual",
    "What would you have answered to the same question if the order of the passages in the prompt was different?",
    table=4,
)
EXAMPLES = Asking(  # named by the paper as future work, worded here
    "examples",
    "Which of the examples, the first or the second, did you follow most to find this answer to the question, and how?",
    needs_examples=True,
)
ASKINGS = {
    strategy.name: strategy for strategy in (BASIC, DIRECT, COUNTERFACTUAL, EXAMPLES)
}


def asking(name: str) -> Asking:
    """Return a strategy by its name."""
    if name not in ASKINGS:
        raise UserError(f"unknown prompt {name!r}; known: {', '.join(ASKINGS)}")
    return ASKINGS[name]


@dataclass(frozen=True, slots=True)
class PromptContext:
    """A passage as the prompt shows it: the id that is to be cited, and the text."""

    id: str
    text: str


_PLAIN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,38}[A-Za-z0-9])?")


def contexts_of(
    passages: Sequence[Passage], words: int | None = None
) -> tuple[PromptContext, ...]:
    """Return passages with distinct ids as contexts, in the same order, each cut after so many words (None: whole)."""
    return tuple(
        PromptContext(shown_id(passage.id), " ".join(passage.text.split()[:words]))
        for passage in passages
    )


def shown_id(passage_id: str) -> str:
    """Return what a prompt calls a passage: its id if that is letters, digits and `_.:-`, else a part of its hash.

    Any other id could close its bracket, begin a line or be mistaken for another.
    """
    if _PLAIN_ID.fullmatch(passage_id):
        return passage_id
    return hashlib.sha256(passage_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A demonstration: another question, its contexts, and the right answer with context ids in square brackets."""

    question: str
    contexts: tuple[PromptContext, ...]
    answer: str


LABELS = ("QUESTION:", "CONTEXTS:", "Context ID:", "Context:", "ANSWER:")
"""How lines of the prompt begin."""


@dataclass(frozen=True, slots=True)
class GridTemplate:
    """Table 1 with its tags around examples."""

    opening: str = "(example)"
    closing: str = "(/example)"
    # also in a prompt that has none, as the table prints it
    always_mentions_examples: bool = False

    @classmethod
    def tagged(
        cls, opening: str, *, always_mentions_examples: bool = False
    ) -> GridTemplate:
        """Return the template with other tags, such as `<example>`; the closing one gets a slash."""
        if len(opening) < 2 or opening.split() != [opening]:
            raise UserError(f"--tag {opening!r}: give one word, such as <example>")
        return cls(opening, f"{opening[0]}/{opening[1:]}", always_mentions_examples)

    def render(
        self,
        strategy: Asking,
        question: str,
        contexts: Sequence[PromptContext],
        examples: Sequence[Demonstration],
    ) -> str:
        """Return the prompt; its first paragraph is the instruction, and texts of others stand on one line each."""
        return _table1().render(
            template=self,
            asked=strategy.question,
            question=question,
            contexts=contexts,
            examples=examples,
        )


@cache
def _table1() -> jinja2.Template:
    text = files(__package__).joinpath("table1.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - prompts, no HTML
    environment.filters["one_line"] = one_line
    return environment.from_string(text)
