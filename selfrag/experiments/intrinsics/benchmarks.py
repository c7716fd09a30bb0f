"""Public benchmarks of the intrinsics paper as rows of its intrinsics: one small reader for each published schema.

Sources are those of arXiv 2504.11704: SQuAD 2 (SQuADRun) and MT-RAG for answerability (5.2), MT-RAG for rewrites (2.2),
RAGTruth for hallucinations (4.2), MMLU for certainty (3.2), answers on ALCE's ELI5 and on LongBench-Cite for citations
(6.2). None of them comes with this library.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import Any, TypeAlias

from retrieval.sentences import sentences
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.common.public_fields import (
    PublicRow,
    UnusableError,
    identifier,
    text,
    value,
)
from selfrag.common.public_rows import RawRow, raw_rows
from selfrag.evaluation.metrics.entailment import entails
from selfrag.evaluation.normalisation import lifted
from selfrag.experiments.intrinsics.conversations import csv_lines, read_qrels
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.judges.conversation import same_question
from selfrag.judges.entailment import premise
from selfrag.judges.sentences import rules
from selfrag.reflection.judge import Judge
from selfrag.training.intrinsics.certainty import parse_row
from selfrag.training.intrinsics.rows import STEMS, parser

BenchmarkRow: TypeAlias = dict[str, Any]
AT_ONCE = 64
"""Rows that are given to a model together."""
VERDICTS = {True: "faithful", False: "unfaithful", None: "NA"}


@dataclass(frozen=True, slots=True)
class Labelling:
    """Who labels and who checks; None leaves rows as they are."""

    judge: Judge | None = (
        None  # says of each sentence of an answer whether its passages entail it
    )
    checker: Subject | None = None  # says which questions are answerable

    def __call__(
        self, intrinsic: str, rows: Iterator[BenchmarkRow], said: list[str]
    ) -> Iterator[BenchmarkRow]:
        """Yield the rows of an intrinsic; what the checker left out is said in `said`."""
        if intrinsic == "hallucination_detection" and self.judge is not None:
            return (row for some in _parts(rows) for row in _judged(some, self.judge))
        if intrinsic == "answerability" and self.checker is not None:
            return _agreed(rows, self.checker, said)
        return rows


def _parts(rows: Iterator[BenchmarkRow]) -> Iterator[list[BenchmarkRow]]:
    return iter(lambda: list(islice(rows, AT_ONCE)), [])


def _judged(rows: Iterable[BenchmarkRow], judge: Judge) -> Iterator[BenchmarkRow]:
    """Yield rows whose sentences are faithful where all passages together entail them; NA without a verdict."""
    states = [parser("hallucination_detection")(row).state for row in rows]
    pairs = [
        (
            "\n".join(map(premise, state.passages)),
            state.messages[-1].content[sentence["begin"] : sentence["end"]],
        )
        for state, row in zip(states, rows, strict=True)
        for sentence in row["sentences"]
    ]
    verdicts = iter(entails(judge, pairs))
    for row in rows:
        labels = [
            {
                "begin": sentence["begin"],
                "end": sentence["end"],
                "label": VERDICTS[next(verdicts)],
            }
            for sentence in row["sentences"]
        ]
        yield row | {"label_level": "sentence", "sentences": labels}


def _agreed(
    rows: Iterator[BenchmarkRow], checker: Subject, said: list[str]
) -> Iterator[BenchmarkRow]:
    """Yield the rows whose label the checker gives, too."""
    left = 0
    for some in _parts(rows):
        results = checker.ask(
            "answerability", [parser("answerability")(row).state for row in some]
        )
        for row, reflection in zip(some, results, strict=True):
            result = checker.result("answerability", reflection)
            agreed = result.answerable is not None and result.holds == (
                row["label"] == "answerable"
            )
            left += not agreed
            if agreed:
                yield row
    said.append(f"left out, as {checker.name} does not give their label: {left} rows")


UNLABELLED = Labelling()
Read: TypeAlias = Callable[[RawRow, Path], Iterator[BenchmarkRow]]
"""Rows of one record of the file at a path; raises `UnusableError` for a record that is none of the benchmark's."""


def _user(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _squad(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
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
        "conversation": _user(question["question"].strip()),
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


def _mtrag(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """MT-RAG's generation tasks; `reference+RAG.jsonl` has passages for unanswerable questions, too.

    {"task_id": "..<::>2", "input": [..], "contexts": [{"document_id": "..", "title": "..", "text": ".."}],
     "Answerability": ["ANSWERABLE"], ..}
    """
    task = PublicRow.of("mtrag", raw.record)
    raw_label = task["label"]
    label = (
        str(raw_label[0])
        if isinstance(raw_label, list) and raw_label
        else str(raw_label)
    )
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


def _mtrag_rewrite(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
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


def _ragtruth(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
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
    info, said = value(source, "source_info"), row["response"]
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
    judged = [
        {
            "begin": begin,
            "end": end,
            "label": GRADES[any(a < end and begin < b for a, b in wrong)],
        }
        for begin, end in sentences(said, rules)
    ]
    if not judged:
        raise UnusableError("an empty response")
    pieces = _PASSAGE.split(text(info, "passages"))
    yield {
        "id": f"ragtruth-{row['id']}",
        "dataset": "ragtruth",
        "part": row["part"],
        "conversation": [
            *_user(text(info, "question")),
            {"role": "assistant", "content": said},
        ],
        "documents": [
            {"doc_id": f"d{number}", "title": "", "text": piece.strip()}
            for number, piece in zip(pieces[1::2], pieces[2::2], strict=True)
            if piece.strip()
        ],
        "label_level": "sentence",
        "sentences": judged,
    }


def _mmlu(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """MMLU as on the hub, or one of its CSV files, whose name has the subject: question, four options, letter.

    {"question": "..", "subject": "abstract_algebra", "choices": ["..", "..", "..", ".."], "answer": 1}
    """
    row = PublicRow.of("mmlu", raw.record)
    subject, right = row["subject"], row["answer"]
    if type(right) is int and 0 <= right < len(ascii_uppercase):
        right = ascii_uppercase[right]
    yield {
        "id": f"mmlu-{subject}-{raw.key}",
        "dataset": subject,
        "question": row["question"].strip(),
        "options": row["options"],
        "label": right,
    }


def _alce(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Answers on ALCE's ELI5 as its `run.py` writes them, with the citations of the model that wrote them.

    {"data": [{"question": "..", "docs": [{"title": "..", "text": ".."}], "output": "So it is [1][2].", ..}]}
    """
    row = PublicRow.of("alce", raw.record)
    documents = [
        {"doc_id": f"d{number}", **document.values("title", "text")}
        for number, document in enumerate(row["documents"], 1)
    ]
    said, numbers = lifted(row["output"].strip().split("\n")[0])
    spans = sentences(said, rules)
    if not spans:
        raise UnusableError("an empty answer")
    cited: dict[tuple[tuple[int, int], int], None] = {}
    for offset, number in numbers:
        if 1 <= number <= len(documents):
            before = [span for span in spans if span[0] < offset]
            cited[before[-1] if before else spans[0], number] = None
    yield {
        "id": f"alce-{raw.key}",
        "dataset": "alce",
        "conversation": [
            *_user(row["question"]),
            {"role": "assistant", "content": said},
        ],
        "documents": documents,
        "citations": [
            _citation(
                span, documents[number - 1], 0, len(documents[number - 1]["text"])
            )
            for span, number in cited
        ],
    }


def _citation(
    span: tuple[int, int], document: Mapping[str, str], begin: int, end: int
) -> BenchmarkRow:
    response = {"response_begin": span[0], "response_end": span[1]}
    return response | {"doc_id": document["doc_id"], "doc_begin": begin, "doc_end": end}


def _longbench(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
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
    said, citations = "", []
    for written in row["statements"]:
        statement = written["text"].strip()
        begin = len(said) + 1 if said else 0
        said = f"{said} {statement}" if said and statement else said or statement
        for cited in written["citations"]:
            snippet = cited["text"].strip()
            at = document["text"].find(snippet)
            if statement and snippet and at >= 0:
                citations.append(
                    _citation((begin, len(said)), document, at, at + len(snippet))
                )
    if not said:
        raise UnusableError("an empty answer")
    yield {
        "id": f"longbench-{row['id']}",
        "dataset": row["dataset"],
        "conversation": [
            *_user(row["question"]),
            {"role": "assistant", "content": said},
        ],
        "documents": [document],
        "citations": citations,
    }


def _choices(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Multiple choice of section 3.3 as on the hub: eleven of its sets in eight schemas, named after the file.

    ARC-Easy, OpenBookQA, CommonsenseQA and RiddleSense: {"question" or "question_stem": "..", "choices": {"text": [..],
    "label": [..]}, "answerKey": "A"}; PIQA, SocialIQA, MedMCQA, Fig-QA, BIG-bench, CODAH and DREAM: their own.
    """
    parts: tuple[Any, Any, Any]  # question, options, place of the right one
    match raw.record:
        case {"choices": _, "answerKey": key}:
            row_values = PublicRow.of("choices", raw.record)
            names = [option["label"] for option in row_values["options"]]
            right = names.index(key) if key in names else -1
            parts = (
                row_values["stem"],
                [option["text"] for option in row_values["options"]],
                right,
            )
        case {"goal": question, "sol1": first, "sol2": second, "label": right}:
            parts = question, [first, second], right
        case {
            "context": context,
            "question": question,
            "answerA": a,
            "answerB": b,
            "answerC": c,
            "label": right,
        }:
            parts = (
                f"{context} {question}",
                [a, b, c],
                int(right) - 1 if str(right).isdigit() else -1,
            )
        case {
            "question": question,
            "opa": a,
            "opb": b,
            "opc": c,
            "opd": d,
            "cop": right,
        }:
            parts = question, [a, b, c, d], right
        case {
            "startphrase": question,
            "ending1": first,
            "ending2": second,
            "labels": right,
        }:
            parts = question, [first, second], right
        case {
            "inputs": question,
            "multiple_choice_targets": [*options],
            "multiple_choice_scores": [*scores],
        }:
            parts = question, options, scores.index(1) if scores.count(1) == 1 else -1
        case {
            "question_propmt": question,
            "candidate_answers": [*options],
            "correct_answer_idx": right,
        }:
            parts = question, options, right
        case {
            "dialogue": [*said],
            "question": question,
            "choice": [*options],
            "answer": answer,
        }:
            parts = (
                "\n".join(map(str, [*said, question])),
                options,
                options.index(answer) if answer in options else -1,
            )
        case _:
            raise UserError(
                f"no multiple choice in a row with {', '.join(map(repr, list(raw.record)[:12]))}"
            )
    question, options, right = parts
    if type(right) is not int or not 0 <= right < min(
        len(options), len(ascii_uppercase)
    ):
        raise UnusableError("a question without one right option")
    name = path.name.partition(".")[0]
    row = {
        "id": f"{name}-{raw.key}",
        "dataset": name,
        "question": question,
        "options": options,
    }
    yield row | {"label": ascii_uppercase[right]}


def _run(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Yield a model's own short answers: a file of records of `selfrag eval run --traces`, scored by `contains`.

    {"id": "..", "text": "..", "scores": {"contains": [1.0, 1.0], ..}, "trace": {"best": 4, "nodes": [..], ..}, ..}
    """
    trace, row = _recorded(raw, path)
    scored = value(raw.record, "scores")
    if "contains" not in scored:
        raise UnusableError("an answer that `contains` does not score")
    with _traced():
        score, right = (
            trace["nodes"][trace["best"]]["path_score"],
            scored["contains"][0] == 1.0,
        )
    yield row | {"answer": raw.record["text"], "score": score, "right": right}


def _answers(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Yield the same records with answers of any length, whose sentences are for a judge to label."""
    _, row = _recorded(raw, path)
    said = raw.record["text"]
    if not row["documents"]:
        raise UnusableError("an answer without passages")
    yield row | {
        "conversation": [*row["conversation"], {"role": "assistant", "content": said}],
        "label_level": "sentence",
        "sentences": [
            {"begin": begin, "end": end, "label": "NA"}
            for begin, end in sentences(said, rules)
        ],
    }


def _recorded(raw: RawRow, path: Path) -> tuple[Mapping[str, Any], BenchmarkRow]:
    """Return the trace of a record, and a row with its question and passages."""
    if raw.record.get("error") or not text(raw.record, "text").strip():
        raise UnusableError("an item without an answer")
    with _traced():
        trace = raw.record["trace"]
        passages = {
            p["id"]: p for decision in trace["decisions"] for p in decision["passages"]
        }
        documents = [
            {"doc_id": key, "title": p["title"], "text": p["text"]}
            for key, p in passages.items()
        ]
        conversation = _user(trace["question"])
    row = {"id": identifier(raw.record, "id"), "dataset": path.name.partition(".")[0]}
    return trace, row | {"conversation": conversation, "documents": documents}


@contextmanager
def _traced() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"no trace of an answer ({error!r:.60}); run with --traces"
        ) from error


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One kind of public file."""

    intrinsic: str  # whose rows it gives
    read: Read
    split: str = "train"  # under which its records stand in a file that is one object


BENCHMARKS: Mapping[str, Benchmark] = {
    "squad2": Benchmark("answerability", _squad, "data"),
    "mtrag": Benchmark("answerability", _mtrag),
    "mtrag_rewrite": Benchmark("query_rewrite", _mtrag_rewrite),
    "ragtruth": Benchmark("hallucination_detection", _ragtruth),
    "answers": Benchmark("hallucination_detection", _answers),
    "mmlu": Benchmark("uncertainty", _mmlu),
    "choices": Benchmark("uncertainty", _choices),
    "run": Benchmark("uncertainty", _run),
    "alce": Benchmark("citation_generation", _alce, "data"),
    "longbench_cite": Benchmark("citation_generation", _longbench),
}


def parse(text: str) -> tuple[str, Path]:
    """`FORMAT=FILE`, such as `squad2=dev-v2.0.json`, of a format in `BENCHMARKS`."""
    name, equals, path = text.partition("=")
    if not (equals and path):
        raise UserError(
            f"{text!r:.80}: write FORMAT=FILE, such as squad2=dev-v2.0.json"
        )
    if name.strip() not in BENCHMARKS:
        raise UserError(f"unknown format {name!r:.60}; known: {', '.join(BENCHMARKS)}")
    return name.strip(), Path(path)


def write_rows(
    sources: Sequence[tuple[str, Path]],
    out: Path,
    part: str,
    label: Labelling = UNLABELLED,
) -> list[str]:
    """Write files that `selfrag eval intrinsics` and `selfrag train adapter` read, one for each intrinsic.

    Returns a line for each file that was read: its rows, and what was left out and why.
    """
    said: list[str] = []
    if label.judge is None and "answers" in dict(sources):
        raise UserError(
            "answers of a run have no labels; give a judge with --judge, such as nli:MODEL"
        )
    for intrinsic in dict.fromkeys(BENCHMARKS[name].intrinsic for name, _ in sources):
        target = out / f"{STEMS[intrinsic]}_{part}.jsonl"
        if target.exists():
            raise UserError(
                f"{target} is there already; delete it, or give another folder"
            )
        rows = _told(
            [
                source
                for source in sources
                if BENCHMARKS[source[0]].intrinsic == intrinsic
            ],
            part,
            target,
            said,
        )
        write_jsonl(target, label(intrinsic, rows, said))
    return said


def _told(
    sources: Sequence[tuple[str, Path]], part: str, target: Path, said: list[str]
) -> Iterator[BenchmarkRow]:
    """Yield the rows of some files; what was read is said in `said`."""
    seen: set[str] = set()
    for name, path in sources:
        skipped: Counter[str] = Counter()
        before = len(seen)
        for row in read_benchmark(BENCHMARKS[name], path, part, skipped):
            if row["id"] in seen:
                raise UserError(
                    f"{path}: id {row['id']!r:.80} occurs twice; name each file once"
                )
            seen.add(row["id"])
            yield row
        left = "; ".join(
            f"{reason}: {number}" for reason, number in skipped.most_common()
        )
        if len(seen) == before:
            raise UserError(f"{path}: no row for {name}; {left or 'check the format'}")
        said.append(
            f"{name}: {len(seen) - before} rows in {target}{f'; left out: {left}' if left else ''}"
        )


def read_benchmark(
    form: Benchmark, path: Path, part: str, skipped: Counter[str]
) -> Iterator[BenchmarkRow]:
    """Yield the rows of one file in the schema of its intrinsic, each of them checked.

    The file is JSON, JSON lines or Parquet, of MMLU also CSV. Where records name a split, the part `dev` takes `test`,
    too. `skipped` counts the records that give no row, by reason, while rows are taken.
    """
    check: Callable[[BenchmarkRow], object] = (
        parse_row if form.intrinsic == "uncertainty" else parser(form.intrinsic)
    )
    for raw in _csv(path) if path.suffix == ".csv" else raw_rows(path, form.split):
        with raw.blamed():
            try:
                for row in form.read(raw, path):
                    split = row.pop("part", part)
                    if ("train" if split == "train" else "dev") != part:
                        raise UnusableError(f"of the split {split:.40}")
                    check(row)
                    yield row
            except UnusableError as why:
                skipped[str(why)] += 1


def _csv(path: Path) -> Iterator[RawRow]:
    """Yield the lines of MMLU's own files: question, options, letter."""
    subject = re.sub(r"_(?:test|dev|val)$", "", path.stem)
    for number, fields in enumerate(csv_lines(path)):
        place = f"{path}: row {number + 1}"
        if len(fields) < 4:
            raise UserError(f"{place}: not a question, its options and a letter")
        question, *options, right = fields
        yield RawRow(
            place,
            str(number),
            {
                "question": question,
                "subject": subject,
                "choices": options,
                "answer": right,
            },
        )
