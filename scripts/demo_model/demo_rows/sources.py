"""The training files the demo rows are made of, read strictly.

Only training splits are read. Passages that answer a development query are left out of the corpus, so that no
development article becomes training text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl

FILES: tuple[str, ...] = (
    "train/pairs.jsonl",
    "train/critic.jsonl.gz",
    "intrinsics/answerability_train.jsonl.gz",
    "corpus/queries.jsonl",
    "corpus/qrels.tsv",
    "corpus/wiki-mix.jsonl.gz",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction and its reference output, with the passages that support it, if any."""

    id: str
    dataset: str
    kind: str
    instruction: str
    output: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Critique:
    """One critic label. `evidence` and `output` may be absent or empty, depending on the group."""

    id: str
    dataset: str
    group: str
    rule: str
    instruction: str
    output: str
    label: str
    evidence: Passage | None


@dataclass(frozen=True, slots=True)
class Answerable:
    """A question with documents that answer it, or on-topic ones that do not."""

    id: str
    dataset: str
    question: str
    documents: tuple[Passage, ...]
    answerable: bool


@dataclass(frozen=True, slots=True)
class Query:
    """A corpus question with its short answers and gold passages."""

    id: str
    text: str
    answers: tuple[str, ...]
    gold: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that was read."""

    pairs: tuple[Pair, ...]
    critiques: tuple[Critique, ...]
    answerability: tuple[Answerable, ...]
    queries: tuple[Query, ...]
    corpus: Mapping[str, Passage] = field(repr=False)


def load(folder: Path) -> Sources:
    """Read all of `FILES` under `folder`.

    Raises:
        UserError: a file is missing, or a row is bad; names `file:line`.
    """
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing; --data must name the folder that holds {', '.join(FILES)}")
    corpus = {p.id: p for p in read_jsonl(folder / "corpus/wiki-mix.jsonl.gz", lambda r: _passage(r, r.get("id")))}
    gold = _qrels(folder / "corpus/qrels.tsv")
    listed = list(read_jsonl(folder / "corpus/queries.jsonl", lambda r: (_str(r, "split"), _query(r, gold, corpus))))
    hidden = {passage.id for split, query in listed if split != "train" for passage in query.gold}
    return Sources(
        pairs=tuple(read_jsonl(folder / "train/pairs.jsonl", _pair)),
        critiques=tuple(read_jsonl(folder / "train/critic.jsonl.gz", _critique)),
        answerability=tuple(read_jsonl(folder / "intrinsics/answerability_train.jsonl.gz", _answerable)),
        queries=tuple(query for split, query in listed if split == "train"),
        corpus={key: passage for key, passage in corpus.items() if key not in hidden},
    )


def _pair(record: dict[str, Any]) -> Pair:
    key = _str(record, "id")
    gold = record.get("gold_passages", [])
    return Pair(
        key,
        _str(record, "dataset"),
        _str(record, "kind"),
        _str(record, "instruction"),
        _str(record, "output"),
        tuple(_passage(p, f"{key}/p{i}") for i, p in enumerate(gold, 1)),
    )


def _critique(record: dict[str, Any]) -> Critique:
    key, evidence = _str(record, "id"), record.get("evidence")
    return Critique(
        key,
        _str(record, "dataset"),
        _str(record, "group"),
        _str(record, "rule"),
        _str(record, "instruction"),
        _str(record, "output"),
        _str(record, "label"),
        None if evidence is None else _passage(evidence, f"{key}/e"),
    )


def _answerable(record: dict[str, Any]) -> Answerable:
    key, conversation, documents = _str(record, "id"), record.get("conversation"), record.get("documents")
    if not isinstance(conversation, list) or not conversation or not isinstance(documents, list):
        raise UserError("'conversation' must be a list of turns and 'documents' a list")
    label = _str(record, "label")
    if label not in ("answerable", "unanswerable"):
        raise UserError(f"'label' must be answerable or unanswerable, not {label!r}")
    docs = tuple(_passage(d, f"{key}/{d.get('doc_id')}") for d in documents)
    return Answerable(key, _str(record, "dataset"), _str(conversation[-1], "content"), docs, label == "answerable")


def _query(record: dict[str, Any], gold: Mapping[str, list[str]], corpus: Mapping[str, Passage]) -> Query:
    key, answers = _str(record, "id"), record.get("answers")
    if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        raise UserError("'answers' must be a list of texts")
    try:
        passages = tuple(corpus[passage] for passage in gold.get(key, []))
    except KeyError as error:
        raise UserError(f"the judged passage {error} is not in the corpus") from error
    return Query(key, _str(record, "text"), tuple(answers), passages)


def _qrels(path: Path) -> dict[str, list[str]]:
    gold: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.split("\t")
        if len(fields) != 3:
            raise UserError(f"{path}:{number}: expected query-id, corpus-id and score; fix this line")
        if number > 1 and float(fields[2]) > 0:
            gold.setdefault(fields[0], []).append(fields[1])
    return gold


def _passage(record: Any, key: object) -> Passage:
    if not isinstance(record, dict):
        raise UserError(f"a passage must be an object, not {type(record).__name__}")
    if not isinstance(key, str):
        raise UserError("'id' is missing")
    return Passage(key, _str(record, "text"), _str(record, "title"))


def _str(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise UserError(f"{key!r} must be text, not {value!r:.60}")
    return value
