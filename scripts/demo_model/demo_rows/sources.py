"""The training files the demo rows are made of, read strictly.

Only training splits are read. Passages that answer a development query are left out of the corpus, so that no
development article becomes training text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from critic.case_files import read_labelled as read_cases
from critic.cases import Case
from critic.pairs import Pair, read_pairs
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.experiments.intrinsics.conversations import csv_lines, read_collection
from selfrag.training.intrinsics.rows import IntrinsicRow, read_labelled

FILES: tuple[str, ...] = (
    "train/pairs.jsonl",
    "train/critic.jsonl.gz",
    "intrinsics/answerability_train.jsonl.gz",
    "corpus/queries.jsonl",
    "corpus/qrels.tsv",
    "corpus/wiki-mix.jsonl.gz",
)


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
    critiques: tuple[Case, ...]  # labelled
    answerability: tuple[IntrinsicRow, ...]
    queries: tuple[Query, ...]
    corpus: Mapping[str, Passage] = field(repr=False)


def load(folder: Path) -> Sources:
    """Read all of `FILES` under `folder`.

    Raises:
        UserError: a file is missing, or a row is bad; names `file:line`.
    """
    pairs, cases, answerability, *_ = paths = [folder / name for name in FILES]
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{path} is missing; --data must name the folder that holds {', '.join(FILES)}"
            )
    collection = read_collection(folder / "corpus", "train")
    corpus = dict(collection.passages)
    judged: dict[str, list[str]] = {}  # in the order of the file
    for query, name, score in csv_lines(folder / "corpus/qrels.tsv", "excel-tab")[1:]:
        if float(score) > 0:
            judged.setdefault(query, []).append(name)
    queries = []
    for key, (text, answers) in collection.queries.items():
        gold = tuple(corpus[name] for name in judged.get(key, ()))
        queries.append(Query(key, text, answers, gold))
    for key in judged.keys() - collection.queries.keys():
        for name in judged[key]:
            corpus.pop(name, None)
    return Sources(
        pairs=tuple(read_pairs(pairs)),
        critiques=tuple(read_cases(cases)),
        answerability=tuple(read_labelled(answerability, "answerability")),
        queries=tuple(queries),
        corpus=corpus,
    )
