"""The append-only file of replies that a run leaves. Killed at any moment, nothing in it is lost or doubled.

The first line says by what teacher; every further line is one reply. Knows no teacher and no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from critic.cases import GROUPS
from critic.teacher.base import Outcome, Reply
from critic.teacher.questions import Question, digest
from retrieval.errors import UserError
from selfrag.runlog import Header, RunLog

_KIND = Header("critic-replies/1", "replies", "a teacher", "choose another directory")


class Journal:
    """Replies on disk by question id; use it as a context manager, by one process at a time.

    Args:
        path: made if missing.
        identity: of the teacher; must be that of the file.

    Raises:
        UserError: the file is of another teacher, damaged, or cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._replies: dict[str, tuple[str, Reply]] = {}
        self.prompt_tokens = self.completion_tokens = self.requests = 0
        """Totals over all lines, those of failed attempts included."""
        self._file = RunLog(path, _KIND, identity, self._take)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def reply(self, question: Question) -> Reply | None:
        """What is known about a question; the last reply where it was asked again.

        Raises:
            UserError: the reply is to another case under the same id.
        """
        found = self._replies.get(question.id)
        if found is None:
            return None
        if found[0] != digest(question.case):
            raise UserError(
                f"{self._file.path}: {question.id!r} was answered for another case;"
                " choose another directory for new cases"
            )
        return found[1]

    def append(self, question: Question, reply: Reply) -> None:
        """Add one reply.

        Raises:
            UserError: the disk is full, or the file cannot be written; the file ends with the last whole line.
        """
        record = {"id": question.id, "group": question.case.group, "case": digest(question.case)}
        self._file.append({**record, **_as_dict(reply)})
        self._count(question.id, digest(question.case), reply)

    def _take(self, record: Mapping[str, Any]) -> None:
        self._count(str(record["id"]), str(record["case"]), _parse(record))

    def _count(self, key: str, case: str, reply: Reply) -> None:
        self._replies[key] = (case, reply)
        self.requests += reply.requests
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


def _as_dict(reply: Reply) -> dict[str, Any]:
    return {name: getattr(reply, name) for name in Reply.__slots__}


def _parse(record: Mapping[str, Any]) -> Reply:
    fields = {name: record[name] for name in Reply.__slots__}
    scores = fields["distribution"]
    fields |= {"outcome": Outcome(fields["outcome"]), "distribution": None if scores is None else tuple(scores)}
    reply = Reply(**fields)
    if (reply.outcome is Outcome.LABELLED) != (reply.label is not None):
        raise ValueError("outcome and label contradict each other")
    if reply.label is not None and reply.label not in GROUPS[record["group"]].names:
        raise ValueError(f"{reply.label!r} is no label of {record['group']}")
    return reply
