"""`GoldTeacher`: annotations that exist already, in files of labelled cases, as a teacher. Guesses nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from critic.cases import Case, Labelled, read_labelled
from critic.teacher.base import Outcome, Reply
from critic.teacher.questions import digest
from selfrag.evaluation.provenance import sha256


class GoldTeacher:
    """Labels a case by the rows that judge the very same texts.

    Args:
        files: in the schema of `critic.cases.read_labelled`.
        name: what reports call it. `label_source` stays that of the row.

    Raises:
        UserError: a file cannot be read, or a row is bad.
    """

    def __init__(self, files: Sequence[str | Path], name: str = "gold") -> None:
        self._name = name
        self._files = [Path(file) for file in files]
        self._rows: dict[str, list[Labelled]] = {}
        for file in self._files:
            for row in read_labelled(file):
                self._rows.setdefault(digest(row.case), []).append(row)

    @property
    def name(self) -> str:
        """What reports call it."""
        return self._name

    def identity(self) -> Mapping[str, Any]:
        """The content of the files."""
        return {"teacher": self._name, "gold": [sha256(file) for file in self._files]}

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, Reply]]:
        """One reply a case, in order; a case without a row, or with rows that disagree, is set aside."""
        for position, case in enumerate(cases):
            rows = self._rows.get(digest(case), [])
            labels = sorted({row.label for row in rows})
            if len(labels) == 1:
                yield position, Reply(Outcome.LABELLED, labels[0], labels[0], source=rows[0].label_source or self._name)
            else:
                reason = "the gold rows disagree" if labels else "no gold row"
                yield position, Reply(Outcome.ASIDE, raw="; ".join(labels), reason=reason, source=self._name)
