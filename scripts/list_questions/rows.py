"""List questions with the passages that a search finds for them: the rows of an evaluation file and its manifest."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from list_questions.questions import ListQuestion, list_questions
from list_questions.statements import statements
from retrieval.passage import Passage, Retriever
from selfrag.common.atomic import write_json
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_identified, write_jsonl
from selfrag.common.provenance import commit, sha256, versions
from selfrag.experiments.intrinsics.flows import BM25

TASK = "list_qa"


@dataclass(frozen=True, slots=True)
class Selection:
    """What becomes a row."""

    passages: int = 10  # found for a question
    within: int = 3  # a relevant passage must be among so many; 0 keeps every question
    examples: int = 10  # questions that are set aside as few-shot examples (`split` = train)
    seed: int = 0  # of their choice


def list_rows(
    questions: Sequence[ListQuestion], retriever: Retriever, selection: Selection | None = None
) -> list[dict[str, Any]]:
    """Rows in the schema of `eval` files, with `answers` as lists of names.

    Raises:
        UserError: the retriever cannot search.
    """
    chosen = selection or Selection()
    found = retriever([question.text for question in questions], chosen.passages)
    kept = []
    for question, passages in zip(questions, found, strict=True):
        gold = _gold(question, passages)
        if not chosen.within or any(passage.id in gold for passage in passages[: chosen.within]):
            kept.append((question, passages, gold))
    train = _examples([question for question, _, _ in kept], chosen)
    names = _ids([question for question, _, _ in kept])
    return [
        _row(name, question, passages, gold, "train" if i in train else "dev")
        for i, (name, (question, passages, gold)) in enumerate(zip(names, kept, strict=True))
    ]


def _row(
    name: str, question: ListQuestion, passages: Sequence[Passage], gold: Sequence[str], split: str
) -> dict[str, Any]:
    return {
        "id": name,
        "task": TASK,
        "type": question.type,
        "relations": list(question.relations),
        "split": split,
        "instruction": question.text,
        "question": question.text,
        "answers": [list(answer.names) for answer in question.answers],
        "answer_passage_ids": [list(answer.passages) for answer in question.answers],
        "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in passages],
        "gold_passage_ids": list(gold),
    }


def _gold(question: ListQuestion, passages: Sequence[Passage]) -> list[str]:
    stating = [id_ for answer in question.answers for id_ in answer.passages]
    naming = [p.id for p in passages if _names_all(f"{p.title} {p.text}", question)]
    return list(dict.fromkeys((*stating, *naming)))


def _names_all(text: str, question: ListQuestion) -> bool:
    things = all(_stands_in(thing, text) for thing in question.objects)
    return things and any(_stands_in(name, text) for answer in question.answers for name in answer.names)


def _stands_in(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _examples(questions: Sequence[ListQuestion], selection: Selection) -> frozenset[int]:
    """Simple questions about things that no other question is about, so that an example gives no answer away."""
    asked = Counter(thing for question in questions for thing in question.objects)
    alone = [i for i, question in enumerate(questions) if question.type == "simple" and asked[question.objects[0]] == 1]
    drawn = random.Random(selection.seed).sample(alone, min(selection.examples, len(alone)))  # noqa: S311 - no secret
    return frozenset(drawn)


def _ids(questions: Sequence[ListQuestion]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for question in questions:
        plain = unicodedata.normalize("NFKD", " ".join((*question.relations, *question.objects)))
        name = f"list-{question.type}-" + re.sub(r"[^a-z0-9]+", "-", plain.casefold()).strip("-")
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"


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
    passages = list(read_identified(corpus, _corpus_passage))
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


def _corpus_passage(record: dict[str, Any]) -> Passage:
    for key in ("id", "text"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise UserError(f"key {key!r} must be text that is not empty")
    return Passage(record["id"], record["text"], str(record.get("title") or ""))
