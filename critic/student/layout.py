r"""The critic's prompt as text around its parts, and what a label looks like in it. Pure data; knows no tokenizer.

What many cases share comes first: the instruction, then the passage, then what came before, then the sentence judged,
then the question. So IsRel and IsSup of one passage share everything up to the passage's end (a prefix cache computes
it once), and the model reads a claim knowing the passage. Training and inference use one layout; the official critic is
trained without the preamble that it is asked with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from selfrag.errors import UserError
from selfrag.reflection.labels import LabelSet

Style = Literal["tokens", "words"]
"""How labels are written: reflection tokens of an expanded vocabulary, or the label names as ordinary text."""

STYLES: tuple[Style, ...] = ("tokens", "words")

_HEADING = re.compile(r"^(?=###)", re.MULTILINE)

QUESTIONS: Mapping[str, str] = MappingProxyType(
    {
        "Retrieve": "Does the response need a search?",
        "IsRel": "Is the passage relevant?",
        "IsSup": "Does the passage support the response?",
        "IsUse": "How useful is the response, 1 to 5?",
    }
)
"""One question for each group; the model learns from it which labels are asked for."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Text around the parts of a case. A part that a case does not have leaves no trace.

    Attributes:
        style: how labels are written.
        instruction: before what the user asked.
        evidence: before the passage.
        preceding: before what was written before.
        output: before what is judged.
        question: before the group's question.
        answer: between the question and the label.
        questions: the question of each group.
    """

    style: Style = "tokens"
    instruction: str = "### Instruction:\n"
    evidence: str = "\n\n### Passage:\n"
    preceding: str = "\n\n### Before:\n"
    output: str = "\n\n### Response:\n"
    question: str = "\n\n### "
    answer: str = "\n"
    questions: Mapping[str, str] = field(default_factory=lambda: dict(QUESTIONS))

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise UserError(f"unknown label style {self.style!r}; known: {', '.join(STYLES)}")

    def ask(self, group: str, labels: LabelSet) -> str:
        """The end of the prompt, up to the label; with label names as text it lists them."""
        options = f" ({' | '.join(labels.names)})" if self.style == "words" else ""
        return f"{self.question}{self.questions[group]}{options}{self.answer}"

    def surfaces(self, labels: LabelSet) -> tuple[str, ...]:
        """What each label looks like, in label order."""
        return labels.tokens if self.style == "tokens" else labels.names


def body(text: str) -> str:
    """Untrusted text as it goes into a part: a line of it that looks like a heading of the layout is indented."""
    return _HEADING.sub(" ", text)
