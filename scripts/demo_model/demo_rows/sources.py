"""The training files the demo rows are made of, read strictly.

Only training splits are read. Passages that answer a development query are left out of the corpus, so that no
development article becomes training text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.validation import validate

T = TypeVar("T")

FILES: tuple[str, ...] = (
    "train/pairs.jsonl",
    "train/critic.jsonl.gz",
    "intrinsics/answerability_train.jsonl.gz",
    "corpus/queries.jsonl",
    "corpus/qrels.tsv",
    "corpus/wiki-mix.jsonl.gz",
)


@dataclass(frozen=True, slots=True)
class SourceText:
    """A passage of a source, which has no id."""

    title: str
    text: str

    def passage(self, key: str) -> Passage:
        """Return it as a passage with this id."""
        return Passage(key, self.text, self.title)


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction and its reference output, with the passages that support it, if any."""

    id: str
    dataset: str
    kind: str
    instruction: str
    output: str
    gold_passages: tuple[SourceText, ...] = ()

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Return the passages that support the output."""
        return tuple(
            text.passage(f"{self.id}/p{number}")
            for number, text in enumerate(self.gold_passages, 1)
        )


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
    evidence: SourceText | None = None

    @property
    def passage(self) -> Passage | None:
        """Return the evidence as a passage."""
        return None if self.evidence is None else self.evidence.passage(f"{self.id}/e")


@dataclass(frozen=True, slots=True)
class SourceDocument(SourceText):
    """A document of a conversation."""

    doc_id: str


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A turn of a conversation."""

    content: str


@dataclass(frozen=True, slots=True)
class Answerability:
    """A question with documents that answer it, or on-topic ones that do not."""

    id: str
    dataset: str
    conversation: Annotated[tuple[SourceTurn, ...], Field(min_length=1)]
    documents: tuple[SourceDocument, ...]
    label: Literal["answerable", "unanswerable"]

    @property
    def question(self) -> str:
        """Return the last turn."""
        return self.conversation[-1].content

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Return the documents as passages."""
        return tuple(
            document.passage(f"{self.id}/{document.doc_id}")
            for document in self.documents
        )


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """A corpus question with its short answers, as the file has it."""

    id: str
    split: str
    text: str
    answers: tuple[str, ...]


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
    answerability: tuple[Answerability, ...]
    queries: tuple[Query, ...]
    corpus: Mapping[str, Passage] = field(repr=False)


def load(folder: Path) -> Sources:
    """Read all of `FILES` under `folder`.

    Raises:
        UserError: a file is missing, or a row is bad; names `file:line`.
    """
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(
                f"{folder / name} is missing; --data must name the folder that holds {', '.join(FILES)}"
            )
    corpus = {}
    for text in _read(folder / "corpus/wiki-mix.jsonl.gz", Passage):
        corpus[text.id] = text
    gold = _qrels(folder / "corpus/qrels.tsv")
    hidden: set[str] = set()
    queries = []
    for query in _read(folder / "corpus/queries.jsonl", SourceQuery):
        judged = gold.get(query.id, [])
        if unknown := [passage for passage in judged if passage not in corpus]:
            raise UserError(f"the judged passage {unknown[0]} is not in the corpus")
        if query.split == "train":
            queries.append(
                Query(
                    query.id,
                    query.text,
                    query.answers,
                    tuple(corpus[passage] for passage in judged),
                )
            )
        else:
            hidden.update(judged)
    return Sources(
        pairs=tuple(_read(folder / "train/pairs.jsonl", Pair)),
        critiques=tuple(_read(folder / "train/critic.jsonl.gz", Critique)),
        answerability=tuple(
            _read(folder / "intrinsics/answerability_train.jsonl.gz", Answerability)
        ),
        queries=tuple(queries),
        corpus={key: passage for key, passage in corpus.items() if key not in hidden},
    )


def _read(path: Path, kind: type[T]) -> Iterable[T]:
    return read_jsonl(path, lambda record: validate(kind, record, others="ignore"))


def _qrels(path: Path) -> dict[str, list[str]]:
    """Return the relevant passages of each query."""
    gold: dict[str, list[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.split("\t")
        if len(fields) != 3:
            raise UserError(
                f"{path}:{number}: expected query-id, corpus-id and score; fix this line"
            )
        if number > 1 and float(fields[2]) > 0:
            gold.setdefault(fields[0], []).append(fields[1])
    return gold
