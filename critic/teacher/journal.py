"""The append-only file of replies that a run leaves. Killed at any moment, nothing in it is lost or doubled.

The first line says by what teacher; every further line is one reply, written in one piece. A line that a crash or a
full disk cut short is dropped when the file is opened again. Knows no teacher and no network.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from critic.cases import GROUPS
from critic.teacher.base import Outcome, Reply
from critic.teacher.questions import Question, digest
from retrieval.atomic import writing
from retrieval.errors import UserError

_FORMAT = "critic-replies/1"


class Journal:
    """Replies on disk by question id; use it as a context manager, by one process at a time.

    Args:
        path: made if missing.
        identity: of the teacher; must be that of the file.

    Raises:
        UserError: the file is of another teacher, damaged, or cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._replies: dict[str, tuple[str, Reply]] = {}
        self.prompt_tokens = self.completion_tokens = self.requests = 0
        """Totals over all lines, those of failed attempts included."""
        with writing(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if self._read(json.loads(json.dumps(identity))) == 0:
                self._write({"format": _FORMAT, "identity": identity})
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._handle)
        os.close(self._handle)

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
                f"{self._path}: {question.id!r} was answered for another case; choose another directory for new cases"
            )
        return found[1]

    def append(self, question: Question, reply: Reply) -> None:
        """Add one reply.

        Raises:
            UserError: the disk is full, or the file cannot be written; the file ends with the last whole line.
        """
        record = {"id": question.id, "group": question.case.group, "case": digest(question.case)}
        self._write({**record, **_as_dict(reply)})
        self._count(question.id, digest(question.case), reply)

    def _count(self, key: str, case: str, reply: Reply) -> None:
        self._replies[key] = (case, reply)
        self.requests += reply.requests
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record).encode("ascii") + b"\n"
        size = os.fstat(self._handle).st_size
        with writing(self._path):
            try:
                if os.write(self._handle, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._handle, size)
                raise

    def _read(self, identity: Any) -> int:
        """Load what is there and cut a torn last line; the number of whole lines."""
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.ftruncate(self._handle, whole)
        lines = content[:whole].splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if number == 1:
                    self._same_teacher(record, identity)
                else:
                    self._count(str(record["id"]), str(record["case"]), _parse(record))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UserError(f"{self._path}:{number}: damaged ({error}); remove this line") from error
        return len(lines)

    def _same_teacher(self, record: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        if record.get("format") != _FORMAT:
            raise UserError(f"{self._path} is no journal of replies; choose another directory")
        found = record["identity"]
        if differing := [key for key in sorted({*found, *identity}) if found.get(key) != identity.get(key)]:
            raise UserError(
                f"{self._path} holds replies of a teacher with other {', '.join(differing)}:"
                " give the same settings to resume it, or choose another directory"
            )


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
