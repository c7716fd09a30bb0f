"""A model's own answers, as `selfrag eval run --traces` records them, as rows of the intrinsics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrieval.sentences import sentences
from selfrag.common.public_fields import (
    UnusableError,
    identifier,
    text,
    value,
)
from selfrag.common.public_rows import RawRow
from selfrag.experiments.intrinsics.public_benchmarks import BenchmarkRow, user_turn
from selfrag.interface import UserError
from selfrag.judges.sentences import rules

RIGHT_ROUGE = 0.3
"""An answer of free form is right above it, as in Kuhn et al. (arXiv 2302.09664)."""


def read_run(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Yield a model's own answers: a file of records of `selfrag eval run --traces`, right by `rouge_l` or `contains`.

    `rouge_l`, for answers that nobody writes word by word, is scored where a row names it under `metrics`.

    {"id": "..", "text": "..", "scores": {"contains": [1.0, 1.0], ..}, "trace": {"best": 4, "nodes": [..], ..}, ..}
    """
    trace, row = _recorded(raw, path)
    scored = value(raw.record, "scores")
    with _traced():
        score = trace["nodes"][trace["best"]]["path_score"]
        if "rouge_l" in scored:
            right = scored["rouge_l"][0] > RIGHT_ROUGE
        elif "contains" in scored:
            right = scored["contains"][0] == 1.0
        else:
            raise UnusableError(
                "an answer that neither `contains` nor `rouge_l` scores"
            )
    yield row | {"answer": raw.record["text"], "score": score, "right": right}


def read_answers(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Yield the same records with answers of any length, whose sentences are for a judge to label."""
    _, row = _recorded(raw, path)
    answer = raw.record["text"]
    if not row["documents"]:
        raise UnusableError("an answer without passages")
    yield row | {
        "conversation": [
            *row["conversation"],
            {"role": "assistant", "content": answer},
        ],
        "label_level": "sentence",
        "sentences": [
            {"begin": begin, "end": end, "label": "NA"}
            for begin, end in sentences(answer, rules)
        ],
    }


def _recorded(raw: RawRow, path: Path) -> tuple[Mapping[str, Any], BenchmarkRow]:
    """Return the trace of a record, and a row with its question and passages."""
    if raw.record.get("error") or not text(raw.record, "text").strip():
        raise UnusableError("an item without an answer")
    with _traced():
        trace = raw.record["trace"]
        documents = {}
        for decision in trace["decisions"]:
            for passage in decision["passages"]:
                key = passage["id"]
                document = {"title": passage["title"], "text": passage["text"]}
                documents[key] = {"doc_id": key, **document}
        conversation = user_turn(trace["question"])
    row = {"id": identifier(raw.record, "id"), "dataset": path.name.partition(".")[0]}
    return trace, row | {
        "conversation": conversation,
        "documents": list(documents.values()),
    }


@contextmanager
def _traced() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"no trace of an answer ({error!r:.60}); run with --traces"
        ) from error
