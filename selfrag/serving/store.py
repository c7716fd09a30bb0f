"""Answers that a server keeps for a while, with their traces: in memory, or in a SQLite file."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from retrieval.reading import user_path
from selfrag.decoding.answer import Answer
from selfrag.errors import UserError

MOST = 1_000
"""Answers that are kept, unless told otherwise; the oldest go first."""


class AnswerStore:
    """The last answers, by names that cannot be guessed. Safe to call from many threads.

    Args:
        path: SQLite file; None keeps the answers in memory.
        most: how many are kept.

    Raises:
        UserError: the file cannot be used.
    """

    def __init__(self, path: Path | None = None, most: int = MOST) -> None:
        self._most, self._lock = most, threading.Lock()
        try:
            self._rows = sqlite3.connect(
                ":memory:" if path is None else user_path(path), check_same_thread=False, isolation_level=None
            )
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.execute(
                "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, name TEXT UNIQUE, content BLOB)"
            )
        except sqlite3.Error as error:
            raise UserError(f"answers cannot be kept in {path}: {error}; name another file") from error

    def keep(self, answer: Answer) -> str:
        """Store an answer and return its name.

        Raises:
            UserError: the file cannot be written.
        """
        name = f"ans_{token_urlsafe(16)}"
        values = {"answer": answer.as_dict(), "trace": answer.trace.as_dict(), "final": answer.final}
        content = zlib.compress(json.dumps(values, ensure_ascii=False).encode(), 1)
        try:
            with self._lock:
                self._rows.execute("INSERT INTO answers (name, content) VALUES (?, ?)", (name, content))
                self._rows.execute(
                    "DELETE FROM answers WHERE number <= (SELECT MAX(number) FROM answers) - ?", (self._most,)
                )
        except sqlite3.Error as error:
            raise UserError(f"the answer cannot be kept: {error}") from error
        return name

    def find(self, name: str) -> dict[str, Any] | None:
        """`answer` and `trace` as plain values, and whether no stage saw the written answer (`final`); None if unknown.

        Raises:
            UserError: the file cannot be read.
        """
        try:
            with self._lock:
                row = self._rows.execute("SELECT content FROM answers WHERE name = ?", (name,)).fetchone()
            found: dict[str, Any] | None = None if row is None else json.loads(zlib.decompress(row[0]))
        except (sqlite3.Error, zlib.error, ValueError, TypeError) as error:
            raise UserError(f"the kept answer cannot be read: {error}") from error
        return found

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._rows.close()
