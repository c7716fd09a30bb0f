"""Labelled cases of every group for tests of the student: a few of each label, with and without passages."""

from __future__ import annotations

from critic.cases import GROUPS, Case, LabelledCase
from retrieval.passage import Passage

PASSAGE = Passage(
    "p",
    "The capital of France is Paris, and the river through it is the Seine.",
    "Paris",
)


def case(
    group: str, number: int = 0, *, text: str = "Paris is the capital of France."
) -> Case:
    """A case with the parts that its group has."""
    instruction = f"Question {number}: what is the capital of France?"
    if group == "Retrieve":
        return (
            Case(group, instruction, "", text)
            if number % 2
            else Case(group, instruction, "Well.", text, PASSAGE)
        )
    if group == "IsRel":
        return Case(group, instruction, evidence=PASSAGE)
    if group == "IsSup":
        return Case(group, instruction, "Well." if number % 2 else "", text, PASSAGE)
    return Case(group, instruction, "", text)


def labelled(each: int = 2) -> list[LabelledCase]:
    """`each` rows of every label of every group."""
    return [
        LabelledCase(
            f"{group}/{label}/{i}",
            case(group, i),
            label,
            f"set{i % 2}",
            "human" if i % 2 else "derived",
            "rule",
        )
        for group, labels in GROUPS.items()
        for label in labels.names
        for i in range(each)
    ]
