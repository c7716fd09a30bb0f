"""Table 1 of the paper as a template: prompting strategies, contexts with the ids that a citation names, examples.

Table 1 has come down as text in which the tags of examples read `(example)`. They may have been `<example>`, so they
are a parameter. Every line of the table is a line of the prompt, and a blank line follows the instruction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.intrinsics.chat.transcript import one_line

XAI_INSTRUCTION = (
    "You are also asked about why you are giving this answer to the question. Please respond to it right after."
)
"""[XAI instr.] of Table 1, the same in every prompt that asks for an explanation."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A prompting strategy: what is asked about the answer.

    Attributes:
        name: in options and tables.
        question: [XAI Q.] of Table 1; empty for the basic prompt.
        needs_examples: makes no sense in a prompt without examples.
        table: number of the paper's table of results; None where the paper has none.
    """

    name: str
    question: str = ""
    needs_examples: bool = False
    table: int | None = None

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
    """Passages as contexts, in the same order.

    Args:
        passages: with distinct ids.
        words: a text is cut after so many; None keeps it whole.
    """
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


TASK = (
    "You are an assistant for question-answering tasks. Use the pieces of context provided by the user to ANSWER the"
    " QUESTION to the best of your ability. If you don't know the answer, just say that you don't know. Keep the answer"
    " concise. Always cite one or more corresponding context IDs as your sources (which must be among the given"
    " CONTEXTS) between square brackets (e.g. [alb2x34d])"
)
AS_EXAMPLES = (
    ", as it's done in each example. Examples are given below, each example between the '{opening}' and '{closing}'"
    " tags"
)
ACTUAL = ". After that, you are given the actual question with contexts so that you answer it."
LABELS = ("QUESTION:", "CONTEXTS:", "Context ID:", "Context:", "ANSWER:")


@dataclass(frozen=True, slots=True)
class Template:
    """Table 1.

    Attributes:
        opening: tag before an example.
        closing: tag after it.
        always_mentions_examples: keep the words on examples in a prompt that has none, as the table prints them.
    """

    opening: str = "(example)"
    closing: str = "(/example)"
    always_mentions_examples: bool = False

    @classmethod
    def tagged(cls, opening: str, *, always_mentions_examples: bool = False) -> Template:
        """The template with other tags, such as `<example>`; the closing one gets a slash.

        Raises:
            UserError: no tag: blank, of one character, or with white space in it.
        """
        if len(opening) < 2 or opening.split() != [opening]:
            raise UserError(f"--tag {opening!r}: give one word, such as <example>")
        return cls(opening, f"{opening[0]}/{opening[1:]}", always_mentions_examples)

    def instruction(self, asked: Asking, examples: int) -> str:
        """The paragraph before the examples."""
        mentions = examples > 0 or self.always_mentions_examples
        shown = AS_EXAMPLES.format(opening=self.opening, closing=self.closing) if mentions else ""
        return f"{TASK}{shown}{ACTUAL}{f' {XAI_INSTRUCTION}' if asked.explains else ''}"

    def render(self, asked: Asking, question: str, contexts: Sequence[Context], examples: Sequence[Example]) -> str:
        """The whole prompt. What others wrote is put on one line each, so that it cannot pose as a line of the prompt.

        Args:
            asked: the strategy.
            question: of the item.
            contexts: in the order in which they are shown.
            examples: none for the zero-shot prompt.
        """
        lines = [self.instruction(asked, len(examples)), ""]
        for one in examples:
            answer = f"ANSWER: {one_line(one.answer)}"
            lines += [self.opening, *_question(one.question, one.contexts), answer, self.closing]
        return "\n".join([*lines, *_question(question, contexts, asked.question), "ANSWER:"])


def _question(question: str, contexts: Sequence[Context], asked: str = "") -> list[str]:
    lines = [f"QUESTION: {one_line(question)}", *([asked] if asked else []), "CONTEXTS:"]
    for context in contexts:
        lines += [f"Context ID: {context.id}", f"Context: {one_line(context.text)}"]
    return lines
