"""Labelled cases of every group for tests of the student: a few of each label, with and without passages."""

from dataclasses import replace

from critic.cases import GROUPS, Case
from retrieval.passage import Passage
from selfrag.reflection.inputs import Message

PASSAGE = Passage(
    "p",
    "The capital of France is Paris, and the river through it is the Seine.",
    "Paris",
)


def case(group, number=0, *, text="Paris is the capital of France."):
    """A case with the parts that its group has."""
    instruction = f"Question {number}: what is the capital of France?"
    if group == "Retrieve":
        return (
            Case.of(group, instruction, "", text)
            if number % 2
            else Case.of(group, instruction, "Well.", text, PASSAGE)
        )
    if group == "IsRel":
        return Case.of(group, instruction, evidence=PASSAGE)
    if group == "IsSup":
        return Case.of(group, instruction, "Well." if number % 2 else "", text, PASSAGE)
    return Case.of(group, instruction, "", text)


def asking(instruction, row):
    """The same case of another instruction."""
    turns = (Message("user", instruction), *row.state.messages[1:])
    return replace(row, state=replace(row.state, messages=turns))


def labelled(each=2):
    """`each` rows of every label of every group."""
    return [
        replace(
            case(group, i),
            id=f"{group}/{label}/{i}",
            label=label,
            dataset=f"set{i % 2}",
            label_source="human" if i % 2 else "derived",
            rule="rule",
        )
        for group, labels in GROUPS.items()
        for label in labels.names
        for i in range(each)
    ]
