"""Cases: what a critic is asked about, and with a label the rows of its data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from selfrag.interface import (
    ISREL,
    ISSUP,
    ISUSE,
    RETRIEVE,
    JudgeInput,
    LabelSet,
    Message,
    Passage,
    UserError,
)

GROUPS: dict[str, LabelSet] = {
    "Retrieve": RETRIEVE,
    "IsRel": ISREL,
    "IsSup": ISSUP,
    "IsUse": ISUSE,
}
"""The four reflection groups under their names in files (paper, Table 1)."""

FIELDS = {
    "instruction": "Instruction",
    "preceding": "Preceding sentences",
    "output": "Output",
    "evidence": "Evidence",
}
"""Texts of a case, and what forms and reports call them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A reflection group and what its judge looks at; in a file with an id, and with a label where it has one.

    Its first passage is the evidence: to judge (IsRel), to judge against (IsSup), or used so far (Retrieve).
    """

    group: str  # a key of `GROUPS`
    state: JudgeInput  # the instruction, and where there is one the response, or the sentence of it, that is judged
    id: str = ""  # unique in its file
    dataset: str = ""
    rule: str = ""  # how the case was made
    label: str = ""  # a label name of the group; empty where there is none yet
    label_source: str = ""  # who labelled: `human`, `derived`, or the name of a teacher

    @classmethod
    def of(
        cls,
        group: str,
        instruction: str,
        preceding: str = "",
        output: str = "",
        evidence: Passage | None = None,
        **row: str,
    ) -> Case:
        """Return a case of these texts.

        Args:
            group: a key of `GROUPS`.
            instruction: what the user asked.
            preceding: the response before `output`.
            output: what is judged of the response; empty for IsRel and for the first Retrieve.
            evidence: the passage.
            row: further fields, such as `id` and `label`.
        """
        turns = [Message("user", instruction)]
        if preceding or output:
            turns.append(Message("assistant", preceding + output))
        passages = () if evidence is None else (evidence,)
        state = JudgeInput(tuple(turns), passages, begin=len(preceding))
        return cls(group, state, **row)

    @property
    def labels(self) -> LabelSet:
        """Return the labels to choose from."""
        return GROUPS[self.group]

    @property
    def evidence(self) -> Passage | None:
        """Return the first passage, if there is one."""
        return next(iter(self.state.passages), None)

    @property
    def instruction(self) -> str:
        """Return what the user asked."""
        return self.state.query or ""

    @property
    def preceding(self) -> str:
        """Return the response before what is judged."""
        return self.state.before

    @property
    def output(self) -> str:
        """Return what is judged of the response; empty where that is none of it."""
        return self.state.text

    def texts(self) -> dict[str, str]:
        """Return the texts of the case by the keys of `FIELDS`."""
        passage = self.evidence
        evidence = ""
        if passage is not None:
            evidence = "\n".join(filter(None, (passage.title, passage.text)))
        return {
            "instruction": self.instruction,
            "preceding": self.preceding,
            "output": self.output,
            "evidence": evidence,
        }

    def fields(self) -> dict[str, str]:
        """Return the texts of the case as forms call them."""
        return {FIELDS[key]: text for key, text in self.texts().items()}

    def shown(self) -> str:
        """Return the texts of the case with the names of their fields, for reports."""
        return "\n".join(
            f"{name}: {text}" for name, text in self.fields().items() if text
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values in the order of the file format; the label only where there is one."""
        passage = self.evidence
        evidence = None
        if passage is not None:
            evidence = {"title": passage.title, "text": passage.text}
        record = {
            "id": self.id,
            "dataset": self.dataset,
            "group": self.group,
            **self.texts(),
            "evidence": evidence,
        }
        if self.label:
            record |= {"label": self.label, "label_source": self.label_source}
        return record | {"rule": self.rule}


def check(case: Case) -> None:
    """Refuse a case without evidence or output where its group needs it, or with a blank passage."""
    evidence = case.evidence
    if evidence is None and case.group in ("IsRel", "IsSup"):
        raise UserError(f"{case.group} needs 'evidence', which is missing")
    if evidence is not None and not evidence.text.strip():
        raise UserError("the text of 'evidence' is empty")
    if case.group in ("IsSup", "IsUse") and not case.output.strip():
        raise UserError(f"{case.group} needs 'output', which is empty")


def digest(case: Case) -> str:
    """Return a short fingerprint of what is judged; the id of the passage does not count."""
    passage = case.evidence
    evidence = None if passage is None else [passage.title, passage.text]
    content = json.dumps([case.group, *list(case.texts().values())[:3], evidence])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
