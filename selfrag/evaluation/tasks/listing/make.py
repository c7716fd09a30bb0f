"""From a corpus file to a file of list questions and its manifest. Knows files; the questions are made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retrieval.atomic import write_json
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.evaluation.tasks.listing.questions import list_questions
from selfrag.evaluation.tasks.listing.rows import Selection, list_rows
from selfrag.evaluation.tasks.listing.statements import statements
from selfrag.experiments.intrinsics.searching import BM25
from selfrag.jsonl import read_identified, write_jsonl
from selfrag.provenance import commit, sha256, versions

CORPUS = "corpus/wiki-mix.jsonl.gz"


def make_list_questions(data: Path, out: Path, selection: Selection | None = None) -> dict[str, Any]:
    """Write OUT, and what it holds into `OUT.manifest.json`.

    Args:
        data: folder with `corpus/wiki-mix.jsonl.gz`, or a corpus file with `id`, `title`, `text`.
        out: the `.jsonl` file.
        selection: which questions stay.

    Returns:
        The manifest: counts by type, by relation and by number of answers, settings, and where the corpus came from.

    Raises:
        UserError: the corpus is missing or bad, or it yields no question.
    """
    chosen = selection or Selection()
    corpus = data / CORPUS if data.is_dir() else data
    passages = list(read_identified(corpus, _passage))
    questions = list_questions(statements(passages))
    rows = list_rows(questions, BM25(passages), chosen) if questions else []
    if not rows:
        raise UserError(f"{corpus}: no list question can be made of its {len(passages)} passages; give another corpus")
    write_jsonl(out, rows)
    manifest = {
        "rows": len(rows),
        "made": len(questions),
        "split": dict(Counter(row["split"] for row in rows)),
        "type": dict(Counter(row["type"] for row in rows)),
        "relation": dict(Counter("+".join(row["relations"]) for row in rows)),
        "answers": {str(n): count for n, count in sorted(Counter(len(row["answers"]) for row in rows).items())},
        "gold_among_passages": sum(_found(row) for row in rows) / len(rows),
        "selection": asdict(chosen),
        "retriever": "BM25 (k1 1.2, b 0.75) over title and text",
        "corpus": {"sha256": sha256(corpus), "passages": len(passages)},
        "sha256": sha256(out),
        "commit": commit(),
        "versions": versions(("selfrag", "bm25s", "numpy")),
    }
    write_json(out.with_name(f"{out.name}.manifest.json"), manifest)
    return manifest


def _found(row: Mapping[str, Any]) -> float:
    """Share of the answers whose passage is among those found."""
    shown = {passage["id"] for passage in row["passages"]}
    return sum(bool(shown & set(ids)) for ids in row["answer_passage_ids"]) / len(row["answers"])


def _passage(record: dict[str, Any]) -> Passage:
    for key in ("id", "text"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise UserError(f"key {key!r} must be text that is not empty")
    return Passage(record["id"], record["text"], str(record.get("title") or ""))
