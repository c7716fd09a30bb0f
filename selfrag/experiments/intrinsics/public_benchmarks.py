"""Public benchmarks of the intrinsics paper as rows of its intrinsics: one small reader for each published schema.

Sources are those of arXiv 2504.11704: SQuAD 2 (SQuADRun) and MT-RAG for answerability (5.2), MT-RAG for rewrites (2.2),
RAGTruth for hallucinations (4.2), answers on ALCE's ELI5 and on LongBench-Cite for citations (6.2). None of them comes
with this library. A reader raises `UnusableError` for a record that gives no row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.sentences import sentences
from selfrag.common.public_fields import (
    PublicRow,
    UnusableError,
    identifier,
    text,
    value,
)
from selfrag.common.public_rows import RawRow, raw_rows
from selfrag.evaluation.normalisation import lifted
from selfrag.experiments.intrinsics.conversations import read_qrels
from selfrag.interface import Span, UserError
from selfrag.judges.conversation import same_question
from selfrag.judges.sentences import rules

BenchmarkRow: TypeAlias = dict[str, Any]


def user_turn(question: str) -> list[dict[str, str]]:
    """Return a conversation of one question."""
    return [{"role": "user", "content": question}]


def read_squad(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """SQuAD 2, an article a record as published, or a question a record as on the hub.

    {"title": "..", "paragraphs": [{"context": "..", "qas": [{"id": "..", "question": "..", "is_impossible": false}]}]}
    {"id": "..", "title": "..", "context": "..", "question": "..", "answers": {"text": [..], "answer_start": [..]}}
    """
    if "paragraphs" in raw.record:
        row = PublicRow.of("squad_article", raw.record)
        for paragraph in row["paragraphs"]:
            for question in paragraph["questions"]:
                yield _answerable(
                    question,
                    row["title"],
                    paragraph["context"],
                    impossible=bool(question["impossible"]),
                )
    else:
        row = PublicRow.of("squad", raw.record)
        yield _answerable(
            row, row["title"], row["context"], impossible=not row["answers"]
        )


def _answerable(
    question: PublicRow, title: str, context: str, *, impossible: bool
) -> BenchmarkRow:
    return {
        "id": f"squad2-{question['id']}",
        "dataset": "squad2",
        "conversation": user_turn(question["question"].strip()),
        "documents": [
            {"doc_id": "d1", "title": title.replace("_", " "), "text": context}
        ],
        "label": "unanswerable" if impossible else "answerable",
    }


_SPEAKERS = {"user": "user", "agent": "assistant"}
_ANSWERABLE = {
    "ANSWERABLE": "answerable",
    "PARTIAL": "answerable",
    "UNANSWERABLE": "unanswerable",
}


def _turns(task: PublicRow) -> list[dict[str, str]]:
    """Return the conversation of a generation task of MT-RAG."""
    turns = []
    for turn in task["turns"]:
        speaker = turn["speaker"]
        if speaker not in _SPEAKERS:
            raise UserError(
                f"unknown speaker {speaker!r:.60}; known: {', '.join(_SPEAKERS)}"
            )
        turns.append({"role": _SPEAKERS[speaker], "content": turn["text"]})
    return turns


def read_mtrag(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """MT-RAG's generation tasks; `reference+RAG.jsonl` has passages for unanswerable questions, too.

    {"task_id": "..<::>2", "input": [..], "contexts": [{"document_id": "..", "title": "..", "text": ".."}],
     "Answerability": ["ANSWERABLE"], ..}
    """
    task = PublicRow.of("mtrag", raw.record)
    raw_label = task["label"]
    if isinstance(raw_label, list) and raw_label:
        raw_label = raw_label[0]
    label = str(raw_label)
    if label not in _ANSWERABLE:
        raise UnusableError(f"a question that is {label:.40}")
    contexts = task["documents"]
    if not contexts:
        raise UnusableError("no passages")
    seen: Counter[str] = Counter()
    documents = []
    for context in contexts:
        document = context.values("doc_id", "title", "text")
        name = document["doc_id"]
        seen[name] += 1
        if seen[name] > 1:
            document["doc_id"] = f"{name}#{seen[name]}"
        documents.append(document)
    row = {"id": task["id"], "dataset": "mtrag", "conversation": _turns(task)}
    yield row | {"documents": documents, "label": _ANSWERABLE[label]}


_MARK = re.compile(r"^\|user\|:\s*")


def read_mtrag_rewrite(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """MT-RAG's rewritten questions: `retrieval_tasks/DOMAIN/DOMAIN_rewrite.jsonl`, with `qrels/dev.tsv` beside it.

    {"_id": "..<::>2", "text": "|user|: What .. ?"}; conversations and right answers are those of
    `generation_tasks/reference.jsonl`.
    """
    key = identifier(raw.record, "_id")
    task = _records(
        path.parent.parent.parent / "generation_tasks" / "reference.jsonl", "task_id"
    ).get(key)
    if task is None:
        raise UnusableError("a question without a generation task")
    row = PublicRow.of("mtrag", task)
    conversation = _turns(row)
    rewrite = _MARK.sub("", text(raw.record, "text")).strip()
    yield {
        "id": key,
        "dataset": f"mtrag {path.parent.name}",
        "conversation": conversation,
        "rewrite": rewrite,
        "changed": not same_question(conversation[-1]["content"], rewrite),
        "relevant": sorted(_judgments(path.parent / "qrels" / "dev.tsv").get(key, ())),
        "answers": [target["text"] for target in row["targets"]],
    }


@cache
def _records(path: Path, key: str) -> dict[str, Mapping[str, Any]]:
    """Return the records of a file by the id under a key."""
    return {identifier(raw.record, key): raw.record for raw in raw_rows(path)}


_judgments = cache(read_qrels)


GRADES = ("faithful", "unfaithful")
_PASSAGE = re.compile(r"^passage (\d+):", re.MULTILINE)


def read_ragtruth(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Yield the QA part of RAGTruth: `response.jsonl` with `source_info.jsonl` beside it; responses of good quality.

    {"id": "1472", "source_id": "11316", "labels": [{"start": 219, "end": 229, ..}], "split": "test", "quality": "good",
     "response": ".."}
    {"source_id": "14312", "task_type": "QA", "source_info": {"question": "..", "passages": "passage 1:.."}}
    """
    row = PublicRow.of("ragtruth", raw.record)
    source = _records(path.parent / "source_info.jsonl", "source_id").get(row["source"])
    if source is None:
        raise UserError(
            f"no source {raw.record['source_id']!r:.60} in source_info.jsonl"
        )
    if text(source, "task_type") != "QA":
        raise UnusableError(f"a response of {source['task_type']:.40}")
    if row["quality"] != "good":
        raise UnusableError(f"a response of quality {row['quality']:.40}")
    info, response = value(source, "source_info"), row["response"]
    if not isinstance(info, Mapping):
        raise UserError(
            f"'source_info' of a question must be an object, not {info!r:.60}"
        )
    wrong: list[tuple[int, int]] = []
    for label in row["labels"]:
        start, end = label["start"], label["end"]
        if not (isinstance(start, int) and isinstance(end, int)):
            raise UserError("a label needs 'start' and 'end', whole numbers")
        wrong.append((start, end))
    judged = []
    for begin, end in sentences(response, rules):
        overlaps = any(first < end and begin < last for first, last in wrong)
        judged.append({"begin": begin, "end": end, "label": GRADES[overlaps]})
    if not judged:
        raise UnusableError("an empty response")
    pieces = _PASSAGE.split(text(info, "passages"))
    documents = []
    for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if passage := piece.strip():
            documents.append({"doc_id": f"d{number}", "title": "", "text": passage})
    yield {
        "id": f"ragtruth-{row['id']}",
        "dataset": "ragtruth",
        "part": row["part"],
        "conversation": [
            *user_turn(text(info, "question")),
            {"role": "assistant", "content": response},
        ],
        "documents": documents,
        "label_level": "sentence",
        "sentences": judged,
    }


def read_alce(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Answers on ALCE's ELI5 as its `run.py` writes them, with the citations of the model that wrote them.

    {"data": [{"question": "..", "docs": [{"title": "..", "text": ".."}], "output": "So it is [1][2].", ..}]}
    """
    row = PublicRow.of("alce", raw.record)
    documents = []
    for number, document in enumerate(row["documents"], 1):
        values = document.values("title", "text")
        documents.append({"doc_id": f"d{number}", **values})
    answer, numbers = lifted(row["output"].strip().split("\n")[0])
    spans = sentences(answer, rules)
    if not spans:
        raise UnusableError("an empty answer")
    cited: dict[tuple[Span, int], None] = {}
    for offset, number in numbers:
        if 1 <= number <= len(documents):
            before = [span for span in spans if span[0] < offset] or spans[:1]
            cited[before[-1], number] = None
    citations = []
    for span, number in cited:
        document = documents[number - 1]
        citations.append(_citation(span, document, 0, len(document["text"])))
    yield {
        "id": f"alce-{raw.key}",
        "dataset": "alce",
        "conversation": [
            *user_turn(row["question"]),
            {"role": "assistant", "content": answer},
        ],
        "documents": documents,
        "citations": citations,
    }


def _citation(
    span: Span, document: Mapping[str, str], begin: int, end: int
) -> BenchmarkRow:
    response = {"response_begin": span[0], "response_end": span[1]}
    return response | {"doc_id": document["doc_id"], "doc_begin": begin, "doc_end": end}


def read_longbench(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """English answers on LongBench-Cite as its scripts write them, with `LongBench-Cite.json` beside the file.

    {"idx": 3, "dataset": "hotpotqa", "query": "..", "statements": [{"statement": "..", "citation": [{"cite": ".."}]}]}
    {"idx": 3, "language": "en", "context": "..", ..}
    """
    row = PublicRow.of("longbench_cite", raw.record)
    task = _records(path.parent / "LongBench-Cite.json", "idx").get(row["id"])
    if task is None:
        raise UserError(f"no task {raw.record['idx']!r:.60} in LongBench-Cite.json")
    if text(task, "language") != "en":
        raise UnusableError("a task that is not in English")
    document = {"doc_id": "d1", "title": "", "text": text(task, "context")}
    answer, citations, statements = "", [], []
    for written in row["statements"]:
        statement = written["text"].strip()
        if not statement:
            continue
        begin = len(answer) + 1 if answer else 0
        answer = f"{answer} {statement}".strip()
        statements.append((begin, len(answer)))
        for cited in written["citations"]:
            snippet = cited["text"].strip()
            at = document["text"].find(snippet)
            if snippet and at >= 0:
                citations.append(
                    _citation((begin, len(answer)), document, at, at + len(snippet))
                )
    if not answer:
        raise UnusableError("an empty answer")
    yield {
        "id": f"longbench-{row['id']}",
        "dataset": row["dataset"],
        "conversation": [
            *user_turn(row["question"]),
            {"role": "assistant", "content": answer},
        ],
        "documents": [document],
        "citations": citations,
        "statements": statements,
    }
