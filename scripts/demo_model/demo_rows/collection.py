"""A corpus with judged queries, as the folder of training data has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.experiments.intrinsics.conversations import read_passages


@dataclass(frozen=True, slots=True)
class QueryCollection:
    """A corpus with judged queries."""

    passages: Mapping[str, Passage]  # by id
    # id -> text and short answers, of one split
    queries: Mapping[str, tuple[str, tuple[str, ...]]]


def read_collection(folder: Path, split: str) -> QueryCollection:
    """Read `wiki-mix.jsonl.gz` (or `corpus.jsonl`) and `queries.jsonl`."""
    passages = read_passages(folder)
    queries = {}
    for name, part, text, answers in read_jsonl(folder / "queries.jsonl", _query):
        if part == split:
            queries[name] = text, answers
    return QueryCollection(passages, queries)


def _query(record: dict[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
        raise UserError("a query has 'id' and 'text'")
    return (
        record["id"],
        str(record.get("split")),
        record["text"],
        tuple(map(str, record.get("answers") or [])),
    )
