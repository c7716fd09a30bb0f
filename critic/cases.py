"""Cases to judge, with and without labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE, LabelSet

GROUPS: dict[str, LabelSet] = {
    "Retrieve": RETRIEVE,
    "IsRel": ISREL,
    "IsSup": ISSUP,
    "IsUse": ISUSE,
}
"""The four reflection groups under their names in files (paper, Table 1)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case for a critic to judge."""

    group: str  # a key of `GROUPS`
    instruction: str  # what the user asked
    preceding: str = ""  # the response before `output`
    output: str = ""  # the response, or the sentence of it, that is judged; empty for IsRel and for the first Retrieve
    # to judge (IsRel), to judge against (IsSup), or used so far (Retrieve)
    evidence: Passage | None = None

    @property
    def labels(self) -> LabelSet:
        """Return the labels to choose from."""
        return GROUPS[self.group]

    def fields(self) -> dict[str, str]:
        """Return the texts of the case by the names of their fields."""
        passage = self.evidence
        return {
            "Instruction": self.instruction,
            "Preceding sentences": self.preceding,
            "Output": self.output,
            "Evidence": ""
            if passage is None
            else "\n".join(part for part in (passage.title, passage.text) if part),
        }

    def shown(self) -> str:
        """Return the texts of the case with the names of their fields, for reports."""
        return "\n".join(
            f"{name}: {text}" for name, text in self.fields().items() if text
        )


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """A case with its label."""

    id: str  # unique in its file
    case: Case
    label: str  # a label name of the case's group
    dataset: str = ""
    label_source: str = ""  # who labelled: `human`, `derived`, or the name of a teacher
    rule: str = ""  # how the row was made

    def as_dict(self) -> dict[str, Any]:
        """Return plain values in the order of the file format."""
        case = self.case
        evidence = (
            None
            if case.evidence is None
            else {"title": case.evidence.title, "text": case.evidence.text}
        )
        return {
            "id": self.id,
            "dataset": self.dataset,
            "group": case.group,
            "instruction": case.instruction,
            "preceding": case.preceding,
            "output": case.output,
            "evidence": evidence,
            "label": self.label,
            "label_source": self.label_source,
            "rule": self.rule,
        }


@dataclass(frozen=True, slots=True)
class UnlabelledCase:
    """A case that waits for a label."""

    id: str  # unique in its file
    case: Case
    dataset: str = ""
    rule: str = ""  # how the case was made

    def answered(self, label: str, source: str) -> LabelledCase:
        """Return the row of the critic's data."""
        return LabelledCase(self.id, self.case, label, self.dataset, source, self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values in the order of the file format: that of labelled cases, without the label."""
        record = self.answered("", "").as_dict()
        del record["label"], record["label_source"]
        return record


def judgment(
    case: Case,
    distribution: Sequence[float],
    number: int,
    coverage: float = 1.0,
    source: JudgmentSource = JudgmentSource.JUDGE,
) -> Judgment:
    """Return the judgment of the case of this number."""
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment(
        case.labels, f"case {number}", tuple(distribution), coverage, source, evidence
    )


def check(case: Case) -> None:
    """Refuse a case without evidence or output where its group needs it, or with a blank passage."""
    if case.evidence is None and case.group in ("IsRel", "IsSup"):
        raise UserError(f"{case.group} needs 'evidence', which is missing")
    if case.evidence is not None and not case.evidence.text.strip():
        raise UserError("the text of 'evidence' is empty")
    if case.group in ("IsSup", "IsUse") and not case.output.strip():
        raise UserError(f"{case.group} needs 'output', which is empty")


def digest(case: Case) -> str:
    """Return a short fingerprint of what is judged; the id of the passage does not count."""
    evidence = (
        None if case.evidence is None else [case.evidence.title, case.evidence.text]
    )
    content = json.dumps(
        [case.group, case.instruction, case.preceding, case.output, evidence]
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]
