"""`Question`: a case with an id, waiting for a label; the files of `critic sample`. Knows no teacher.

The schema is that of labelled cases without `label` and `label_source`; those are ignored where they are, so that
labelled data can be labelled again by another teacher and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from critic.cases import Case, Labelled, check, parse_case
from retrieval.errors import UserError
from selfrag.jsonl import read_jsonl


@dataclass(frozen=True, slots=True)
class Question:
    """A case to be labelled.

    Attributes:
        id: unique in its file.
        case: what to judge.
        dataset: where it came from.
        rule: how it was made.
    """

    id: str
    case: Case
    dataset: str = ""
    rule: str = ""

    def answered(self, label: str, source: str) -> Labelled:
        """The row of the critic's data."""
        return Labelled(self.id, self.case, label, self.dataset, source, self.rule)

    def as_dict(self) -> dict[str, Any]:
        """Plain values in the order of the file format."""
        record = self.answered("", "").as_dict()
        del record["label"], record["label_source"]
        return record


def digest(case: Case) -> str:
    """Short fingerprint of what is judged; the id of the passage does not count."""
    passage = case.evidence
    evidence = None if passage is None else [passage.title, passage.text]
    content = json.dumps([case.group, case.instruction, case.preceding, case.output, evidence])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_questions(path: str | Path) -> Iterator[Question]:
    """Read a JSONL file of cases (`.gz` allowed), strictly.

    Raises:
        UserError: the file cannot be read, an id occurs twice, a row is bad, or it lacks what its group judges (a
            passage, an output); the message names `file:line`.
    """
    seen: set[str] = set()

    def parse(record: dict[str, Any]) -> Question:
        key, dataset, rule = record.get("id"), record.get("dataset", ""), record.get("rule", "")
        for name, value in (("id", key), ("dataset", dataset), ("rule", rule)):
            if not isinstance(value, str):
                raise UserError(f"{name!r} must be text, not {value!r:.60}")
        if not key or key in seen:
            raise UserError(f"id {key!r} occurs twice" if key else "'id' is empty")
        seen.add(key)
        try:
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError("half of a character (a lone surrogate), which no file can hold") from None
        case = parse_case(record)
        check(case)
        return Question(key, case, dataset, rule)

    return read_jsonl(path, parse)
