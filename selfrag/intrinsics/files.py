"""Conversations in files: JSON as chat servers and data sets have it. Strict; knows no intrinsic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from retrieval.readers import read_files
from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.intrinsics.conversation import read_passages, read_state
from selfrag.intrinsics.state import Message


def read_conversation(path: Path) -> tuple[tuple[Message, ...], tuple[Passage, ...]]:
    """Turns and passages of a file.

    Args:
        path: a JSON list of turns, or an object with `messages` (or `conversation`) and, if it has passages,
            `documents` (or `passages`).

    Raises:
        UserError: the file cannot be read, is no JSON, or holds no conversation.
    """
    given = read_json(path)
    passages: Any = ()
    if isinstance(given, Mapping):
        passages = _one_of(given, "documents", "passages") or ()
        given = _one_of(given, "messages", "conversation")
    if not isinstance(given, list):
        raise UserError(f'{path}: no conversation; write [{{"role": "user", "content": "..."}}]')
    try:
        return read_state(given).messages, read_passages(passages)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_passage_files(paths: list[Path]) -> tuple[Passage, ...]:
    """Passages of `.jsonl`, `.csv`, `.tsv`, `.parquet`, `.txt` and `.md` files, in order.

    Raises:
        UserError: see `retrieval.readers.read_files`.
    """
    return tuple(row.passage for row in read_files(paths)) if paths else ()


def _one_of(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if name in given), None)
