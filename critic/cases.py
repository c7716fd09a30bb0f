"""Cases to judge, with and without labels, and the files that hold them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_identified
from selfrag.common.kinds import Filled
from selfrag.common.validation import validate
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE, LabelSet

GROUPS: dict[str, LabelSet] = {"Retrieve": RETRIEVE, "IsRel": ISREL, "IsSup": ISSUP, "IsUse": ISUSE}
"""The four reflection groups under their names in files (paper, Table 1)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case for a critic to judge."""

    group: str  # a key of `GROUPS`
    instruction: str  # what the user asked
    preceding: str = ""  # the response before `output`
    output: str = ""  # the response, or the sentence of it, that is judged; empty for IsRel and for the first Retrieve
    evidence: Passage | None = None  # to judge (IsRel), to judge against (IsSup), or used so far (Retrieve)

    @property
    def labels(self) -> LabelSet:
        """The labels to choose from."""
        return GROUPS[self.group]

    def fields(self) -> dict[str, str]:
        """The texts of the case by the names of their fields."""
        passage = self.evidence
        return {
            "Instruction": self.instruction,
            "Preceding sentences": self.preceding,
            "Output": self.output,
            "Evidence": "" if passage is None else "\n".join(part for part in (passage.title, passage.text) if part),
        }

    def shown(self) -> str:
        """The texts of the case with the names of their fields, for reports."""
        return "\n".join(f"{name}: {text}" for name, text in self.fields().items() if text)


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
        """Plain values in the order of the file format."""
        case = self.case
        evidence = None if case.evidence is None else {"title": case.evidence.title, "text": case.evidence.text}
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
        """The row of the critic's data."""
        return LabelledCase(self.id, self.case, label, self.dataset, source, self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Plain values in the order of the file format: that of labelled cases, without the label."""
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
    return Judgment(case.labels, f"case {number}", tuple(distribution), coverage, source, evidence)


def check(case: Case) -> None:
    """Refuse a case without evidence or output where its group needs it, or with a blank passage."""
    if case.evidence is None and case.group in ("IsRel", "IsSup"):
        raise UserError(f"{case.group} needs 'evidence', which is missing")
    if case.evidence is not None and not case.evidence.text.strip():
        raise UserError("the text of 'evidence' is empty")
    if case.group in ("IsSup", "IsUse") and not case.output.strip():
        raise UserError(f"{case.group} needs 'output', which is empty")


def digest(case: Case) -> str:
    """Short fingerprint of what is judged; the id of the passage does not count."""
    evidence = None if case.evidence is None else [case.evidence.title, case.evidence.text]
    content = json.dumps([case.group, case.instruction, case.preceding, case.output, evidence])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class EvidenceRecord(TypedDict):
    """A passage in a row of a file."""

    id: NotRequired[str | int]
    title: NotRequired[str]
    text: str


class CaseRecord(TypedDict):
    """A case in a row of a file."""

    id: Filled
    group: Literal["Retrieve", "IsRel", "IsSup", "IsUse"]
    instruction: Filled
    preceding: NotRequired[str]
    output: NotRequired[str]
    evidence: NotRequired[EvidenceRecord | None]
    dataset: NotRequired[str]
    rule: NotRequired[str]


class LabelledRecord(CaseRecord):
    """A labelled case in a row of a file."""

    label: str
    label_source: NotRequired[str]


def read_labelled(path: str | Path, *, judgeable: bool = False) -> Iterator[LabelledCase]:
    """Read a JSONL file of labelled cases (`.gz` allowed), strictly: a `UserError` names `file:line` of a bad row.

    `judgeable` refuses rows that lack what their group judges, too.
    """

    def parse(record: dict[str, Any]) -> LabelledCase:
        row = parse_labelled(record)
        if judgeable:
            check(row.case)
        return row

    return read_identified(path, parse)


def read_questions(path: str | Path) -> Iterator[UnlabelledCase]:
    """Read a JSONL file of cases (`.gz` allowed), as strictly. Labels in it are ignored, to label rows again."""

    def parse(record: dict[str, Any]) -> UnlabelledCase:
        row = validate(CaseRecord, record, others="ignore")
        question = UnlabelledCase(row["id"], parse_case(record), row.get("dataset", ""), row.get("rule", ""))
        check(question.case)
        return question

    return read_identified(path, parse)


def rows_file(path: Path) -> Path:
    """The file itself, or the training rows of a data folder."""
    if not path.is_dir():
        return path
    candidates = [path / "train" / name for name in ("critic.jsonl.gz", "critic.jsonl")]
    found = next((one for one in candidates if one.is_file()), None)
    if found is None:
        raise UserError(f"{path} holds no train/critic.jsonl or train/critic.jsonl.gz; give the file itself")
    return found


def parse_labelled(record: dict[str, Any]) -> LabelledCase:
    """Check one decoded JSON object and make it a labelled case."""
    row = validate(LabelledRecord, record, others="ignore")
    case, label = parse_case(record), row["label"]
    if label not in case.labels.names:
        raise UserError(f"{label!r} is no label of {case.group}; known: {', '.join(case.labels.names)}")
    return LabelledCase(
        row["id"], case, label, row.get("dataset", ""), row.get("label_source", ""), row.get("rule", "")
    )


def parse_case(record: dict[str, Any]) -> Case:
    """Check the keys that make a case; others are ignored."""
    row = validate(CaseRecord, record, others="ignore")
    evidence = row.get("evidence")
    passage = None if evidence is None else passage_of(evidence, f"{row['id']}/evidence")
    return Case(row["group"], row["instruction"], row.get("preceding", ""), row.get("output", ""), passage)


def passage_of(record: EvidenceRecord, name: str) -> Passage:
    """Return a passage of a row, under the name if it has no id of its own."""
    return Passage(str(record.get("id", name)), record["text"], record.get("title", ""))


def parse_targets(texts: Iterable[str]) -> dict[str, int]:
    """Wanted numbers of rows: `IsSup=500` for a group, `IsSup/Partially supported=200` for a label."""
    targets: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        group, _, label = name.partition("/")
        if group not in GROUPS:
            raise UserError(f"target {text!r}: unknown group {group!r}; give one of {', '.join(GROUPS)} as GROUP=N")
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise UserError(f"target {text!r}: {number!r} is no number of rows; write GROUP=N or GROUP/LABEL=N")
        if label and label not in GROUPS[group].names:
            raise UserError(f"target {text!r}: {group} has the labels {', '.join(GROUPS[group].names)}")
        name = f"{group}/{label}" if label else group
        if name in targets:
            raise UserError(f"target {name!r} is given twice; give it once")
        targets[name] = int(number)
    return targets


PAPER = {"Retrieve": 12_594, "IsSup": 11_181, "IsRel": 19_317, "IsUse": 3_831}
"""Rows of the paper's critic data (appendix A.1)."""


class Filling:
    """Counts rows towards targets, which are named as in `parse_targets`; first come, first kept.

    A group takes nothing after its targets are reached, so that rows labelled beyond that point, because they were
    under way, change nothing.
    """

    def __init__(self, targets: Mapping[str, int]) -> None:
        self._targets = targets
        self._kept: Counter[str] = Counter()

    def add(self, group: str, label: str) -> bool:
        """Count a row if it is wanted; whether it was."""
        name = f"{group}/{label}"
        if not self.open(group) or self._full(name):
            return False
        self._kept.update((group, name))
        return True

    def open(self, group: str) -> bool:
        """Whether more rows of a group are wanted.

        With a target for the group: until it is reached, or every label is full. With targets for labels only: until
        each of those is reached; labels without one are kept meanwhile. Without any: always.
        """
        labels = [f"{group}/{label}" for label in GROUPS[group].names]
        if group not in self._targets:
            labels = [name for name in labels if name in self._targets]
        return not self._full(group) and not (labels and all(map(self._full, labels)))

    def _full(self, name: str) -> bool:
        return name in self._targets and self._kept[name] >= self._targets[name]

    def missing(self) -> dict[str, int]:
        """Target -> rows still lacking, for those not reached."""
        return {name: count - self._kept[name] for name, count in self._targets.items() if not self._full(name)}
