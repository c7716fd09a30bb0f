"""What a teacher is told and shown, as data: one `Form` a kind of judgment. Knows no endpoint and no wording.

The kinds are those of the paper (appendix D, Tables 8 to 12); wording and demonstrations are our own. The paper has one
Retrieve prompt for the instruction alone and one for a sentence with evidence; data also hold sentences without
evidence, which have a form of their own, since nothing can be continued there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from critic.cases import Case

INSTRUCTION, PRECEDING, OUTPUT, EVIDENCE = "Instruction", "Preceding sentences", "Output", "Evidence"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A case with its right label."""

    case: Case
    label: str


@dataclass(frozen=True, slots=True)
class Form:
    """How one kind of judgment is asked for.

    Attributes:
        name: unique.
        task: what to judge.
        surfaces: what the teacher writes -> label name, in the order of the label set.
        meanings: label name -> when it applies.
        fields: names of the fields of an item, in order; empty ones are left out.
        question: the field that the teacher fills.
        demonstrations: at least one a label.
    """

    name: str
    task: str
    surfaces: Mapping[str, str]
    meanings: Mapping[str, str]
    fields: tuple[str, ...]
    question: str
    demonstrations: tuple[Demonstration, ...]


def values(case: Case) -> dict[str, str]:
    """Field name -> text of a case."""
    passage = case.evidence
    return {
        INSTRUCTION: case.instruction,
        PRECEDING: case.preceding,
        OUTPUT: case.output,
        EVIDENCE: "" if passage is None else "\n".join(part for part in (passage.title, passage.text) if part),
    }
