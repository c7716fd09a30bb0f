"""Table 1 of the paper as a template (`table1.j2`): prompting strategies, contexts and their ids, examples.

The table has come down as text in which the tags of examples read `(example)`. They may have been `<example>`, so they
are a parameter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.intrinsics.chat import one_line


@dataclass(frozen=True, slots=True)
class Asking:
    """A prompting strategy: what is asked about the answer."""

    name: str
    question: str = ""  # [XAI Q.] of Table 1; empty for the basic prompt
    needs_examples: bool = False
    table: int | None = None  # number of the paper's table of results

    @property
    def explains(self) -> bool:
        """Whether an explanation is asked for."""
        return bool(self.question)


BASIC = Asking("basic", table=2)
DIRECT = Asking("direct", "Why do you think that this is the answer to the question?", table=3)
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
ASKINGS = {one.name: one for one in (BASIC, DIRECT, COUNTERFACTUAL, EXAMPLES)}


def asking(name: str) -> Asking:
    """A strategy by its name.

    Raises:
        UserError: there is none of this name.
    """
    if name not in ASKINGS:
        raise UserError(f"unknown prompt {name!r}; known: {', '.join(ASKINGS)}")
    return ASKINGS[name]


@dataclass(frozen=True, slots=True)
class Context:
    """A passage as the prompt shows it: the id that is to be cited, and the text."""

    id: str
    text: str


_PLAIN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,38}[A-Za-z0-9])?")


def contexts_of(passages: Sequence[Passage], words: int | None = None) -> tuple[Context, ...]:
    """Passages with distinct ids as contexts, in the same order, each cut after so many words (None: whole)."""
    return tuple(Context(shown_id(passage.id), " ".join(passage.text.split()[:words])) for passage in passages)


def shown_id(passage_id: str) -> str:
    """What a prompt calls a passage: its id if that is letters, digits and `_.:-`, else eight digits of its hash.

    Any other id could close its bracket, begin a line or be mistaken for another.
    """
    if _PLAIN_ID.fullmatch(passage_id):
        return passage_id
    return hashlib.sha256(passage_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Example:
    """A demonstration: another question, its contexts, and the right answer with context ids in square brackets."""

    question: str
    contexts: tuple[Context, ...]
    answer: str


LABELS = ("QUESTION:", "CONTEXTS:", "Context ID:", "Context:", "ANSWER:")
"""How lines of the prompt begin."""


@dataclass(frozen=True, slots=True)
class Template:
    """Table 1 with its tags around examples."""

    opening: str = "(example)"
    closing: str = "(/example)"
    always_mentions_examples: bool = False  # also in a prompt that has none, as the table prints it

    @classmethod
    def tagged(cls, opening: str, *, always_mentions_examples: bool = False) -> Template:
        """The template with other tags, such as `<example>`; the closing one gets a slash.

        Raises:
            UserError: no tag: blank, of one character, or with white space in it.
        """
        if len(opening) < 2 or opening.split() != [opening]:
            raise UserError(f"--tag {opening!r}: give one word, such as <example>")
        return cls(opening, f"{opening[0]}/{opening[1:]}", always_mentions_examples)

    def render(self, asked: Asking, question: str, contexts: Sequence[Context], examples: Sequence[Example]) -> str:
        """The whole prompt; the instruction is its first paragraph.

        What others wrote is put on one line each, so that it cannot pose as a line of the prompt.
        """
        shown = {"question": question, "contexts": contexts, "examples": examples}
        return _table1().render(template=self, asked=asked.question, **shown)


@cache
def _table1() -> jinja2.Template:
    text = files(__package__).joinpath("table1.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - prompts, no HTML
    environment.filters["one_line"] = one_line
    return environment.from_string(text)
