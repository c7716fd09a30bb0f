"""The child process of `retrieval.documents.isolation`: reads the files that it is asked for, under their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrieval.documents import document_format
from retrieval.documents.document import Document, ReadingOptions
from selfrag.common.child_work import Replies, answer_requests, limit_time


def main() -> None:
    """Read documents until no more are asked for."""
    answer_requests(_answer)


def _answer(request: Mapping[str, Any], replies: Replies) -> Mapping[str, Any]:
    return asdict(_read(request, replies))


def _read(request: Mapping[str, Any], replies: Replies) -> Document:
    reading = document_format(request["kind"])
    assert reading is not None  # noqa: S101 - the parent has asked, too

    def report_progress() -> None:
        limit_time(request)
        replies.send({})

    return reading.read(
        Path(request["name"]),
        request["title"],
        ReadingOptions(**request["options"]),
        report_progress,
    )
