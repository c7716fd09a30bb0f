"""Conversations whose last question has known passages: read from rows and collections, and searched by words."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from selfrag.interface import (
    JudgeInput,
    Message,
    Passage,
    Retriever,
    UserError,
    read_jsonl,
    require,
)
from selfrag.judges.conversation import same_question
from selfrag.training.intrinsics.rows import IntrinsicRow

PRONOUN = "it"
FOLLOW_UP = "/follow-up"
_SHORT = 4  # letters; shorter titles are words of the language as often as names


@dataclass(frozen=True, slots=True)
class JudgedTurn:
    """A question at the end of a conversation."""

    id: str  # of the query, with `FOLLOW_UP` where it was made dependent
    state: JudgeInput  # the conversation
    gold: str  # the question that stands alone
    relevant: frozenset[str]  # ids of its passages
    standalone: bool  # whether the last turn can be understood by itself
    answers: tuple[str, ...] = ()  # short answers, if known
    source: str = ""  # data set that it is of
    collection: str = ""  # what is searched for it, of several; see `read_collections`


@dataclass(frozen=True, slots=True)
class QueryCollection:
    """A corpus with judged queries."""

    passages: Mapping[str, Passage]  # by id
    # id -> text and short answers, of one split
    queries: Mapping[str, tuple[str, tuple[str, ...]]]
    relevant: Mapping[str, frozenset[str]]  # id of a query -> ids of its passages


def read_collection(folder: Path, split: str) -> QueryCollection:
    """Read `wiki-mix.jsonl.gz` (or `corpus.jsonl`), `queries.jsonl` and `qrels.tsv`."""
    passages = read_passages(folder)
    queries = {}
    for name, part, text, answers in read_jsonl(folder / "queries.jsonl", _query):
        if part == split:
            queries[name] = text, answers
    return QueryCollection(passages, queries, read_qrels(folder / "qrels.tsv"))


def read_qrels(path: Path) -> dict[str, frozenset[str]]:
    """Return query to its relevant passages, of a file of query-id, corpus-id and score under a heading."""
    relevant: dict[str, set[str]] = {}
    for number, fields in enumerate(csv_lines(path, "excel-tab")[1:], 2):
        if len(fields) != 3:
            raise UserError(
                f"{path}:{number}: not query, passage and score; fix this line"
            )
        if fields[2].strip() != "0":
            relevant.setdefault(fields[0], set()).add(fields[1])
    return {query: frozenset(passages) for query, passages in relevant.items()}


def csv_lines(path: Path, dialect: str = "excel") -> list[list[str]]:
    """Return the fields of each line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file, dialect))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def read_passages(corpus: Path) -> dict[str, Passage]:
    """Return passages by id: of a JSON Lines file, BEIR's among them, or of that in a folder."""
    for path in (corpus, corpus / "wiki-mix.jsonl.gz", corpus / "corpus.jsonl"):
        if path.is_file():
            return {passage.id: passage for passage in read_jsonl(path, _passage)}
    raise UserError(
        f"{corpus} has no corpus.jsonl; give a folder with corpus, queries.jsonl and qrels.tsv"
    )


def read_collections(corpus: Path) -> dict[str, dict[str, Passage]]:
    """Return the passages of each collection by its name; a single one has none.

    A folder without `corpus.jsonl` holds a collection a file, such as the four of MT-RAG: `clapnq.jsonl`, ..
    """
    files = sorted(corpus.glob("*.jsonl"))
    if len(files) < 2 or (corpus / "corpus.jsonl").is_file():
        return {"": read_passages(corpus)}
    return {file.stem: read_passages(file) for file in files}


def assign_collections(
    turns: Sequence[JudgedTurn], names: Collection[str]
) -> list[JudgedTurn]:
    """Return the turns with what is searched for each: the collection that its data set, or its conversation, names.

    Raises:
        UserError: no collection is known for a turn.
    """
    if len(names) < 2:
        return list(turns)
    of_conversation = {}
    for turn in turns:
        name = turn.source.partition("/")[0].rpartition(" ")[2]
        if name in names:
            of_conversation[turn.id.partition("<::>")[0]] = name
    assigned = []
    for turn in turns:
        known = of_conversation.get(turn.id.partition("<::>")[0])
        if known is None:
            raise UserError(
                f"{turn.id}: no file of the corpus is known for it; give a corpus of one file, or rows of its domain"
            )
        assigned.append(replace(turn, collection=known))
    return assigned


Searches: TypeAlias = Mapping[str, Retriever]
"""What searches each collection, by its name."""


def places_by_collection(turns: Sequence[JudgedTurn]) -> dict[str, list[int]]:
    """Return the places of the turns of each collection."""
    places: dict[str, list[int]] = {}
    for place, turn in enumerate(turns):
        places.setdefault(turn.collection, []).append(place)
    return places


def search_each(
    searches: Searches, turns: Sequence[JudgedTurn], queries: Sequence[str], k: int
) -> list[Sequence[Passage]]:
    """Return up to `k` passages for the query of each turn, from its own collection."""
    rankings: list[Sequence[Passage]] = [()] * len(turns)
    for name, places in places_by_collection(turns).items():
        hits = searches[name]([queries[place] for place in places], k)
        for place, ranking in zip(places, hits, strict=True):
            rankings[place] = ranking
    return rankings


def judged_turns(
    rows: Sequence[IntrinsicRow], passages: Mapping[str, Passage] | None
) -> list[JudgedTurn]:
    """Return rows of rewrites of which a relevant passage is known, and is among `passages` where those are given."""
    judged = []
    for row in rows:
        known = row.relevant if passages is None else row.relevant & passages.keys()
        if known:
            gold = row.text or ""
            standalone = same_question(row.state.query or "", gold)
            judged.append(
                JudgedTurn(
                    row.id,
                    row.state,
                    gold,
                    known,
                    standalone,
                    row.answers,
                    row.source,
                )
            )
    return judged


def unanswerable_turns(rows: Sequence[IntrinsicRow]) -> list[JudgedTurn]:
    """Return the questions of MT-RAG that its whole corpus does not answer, as its rows of answerability label them."""
    return [
        JudgedTurn(
            row.id,
            replace(row.state, passages=()),
            row.state.query or "",
            frozenset(),
            False,
            source=row.source,
        )
        for row in rows
        if row.source == "mtrag/unanswerable"
    ]


def turns(collection: QueryCollection) -> list[JudgedTurn]:
    """Make follow-ups of questions that name their passage's title, and ask each question after another topic."""
    made: list[JudgedTurn] = []
    openings: list[str] = []
    for key, (text, answers) in sorted(collection.queries.items()):
        relevant = (
            collection.relevant.get(key, frozenset()) & collection.passages.keys()
        )
        titles = [
            title_in(text, collection.passages[name].title) for name in sorted(relevant)
        ]
        title = next(filter(None, titles), "")
        if not title:
            continue
        opening = f"Tell me about {title}."
        dependent = (
            Message("user", opening),
            Message("user", with_pronoun(text, title)),
        )
        made.append(
            JudgedTurn(
                key + FOLLOW_UP, JudgeInput(dependent), text, relevant, False, answers
            )
        )
        if openings and openings[-1] != opening:
            alone = (Message("user", openings[-1]), Message("user", text))
            made.append(
                JudgedTurn(key, JudgeInput(alone), text, relevant, True, answers)
            )
        openings.append(opening)
    return made


def title_in(question: str, title: str) -> str:
    """Return the title, without what is in brackets, if the question has it as whole words; else nothing."""
    if title.rstrip().endswith(")"):
        title = title.partition("(")[0]
    title = title.strip()
    if len(title) < _SHORT or not re.search(
        rf"(?<!\w){re.escape(title)}(?!\w)", question, re.IGNORECASE
    ):
        return ""
    return title


def with_pronoun(question: str, title: str) -> str:
    """Return the question with its title (and an article before it) as a pronoun."""
    pattern = rf"(?<!\w)(?:the\s+)?{re.escape(title)}(?!\w)('s)?"
    return re.sub(
        pattern,
        lambda m: "its" if m.group(1) else PRONOUN,
        question,
        flags=re.IGNORECASE,
    )


def _passage(record: dict[str, Any]) -> Passage:
    try:
        return Passage(
            record["_id"] if "_id" in record else record["id"],
            record["text"],
            record.get("title") or "",
        )
    except KeyError as error:
        raise UserError(f"a passage lacks {error}") from error


def _query(record: dict[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
        raise UserError("a query has 'id' and 'text'")
    return (
        record["id"],
        str(record.get("split")),
        record["text"],
        tuple(map(str, record.get("answers") or [])),
    )


def sample(turns: Sequence[JudgedTurn], limit: int | None) -> list[JudgedTurn]:
    """Return at most `limit`, evenly over the list, dependent and standalone ones alike."""
    if limit is None or len(turns) <= limit:
        return list(turns)
    sampled: list[JudgedTurn] = []
    for standalone, most in ((False, limit - limit // 2), (True, limit // 2)):
        side = [turn for turn in turns if turn.standalone is standalone]
        step = max(1, len(side) // max(1, most))
        sampled += side[::step][:most]
    return sampled


class PassageSearch:
    """Okapi BM25 (k1 1.2, b 0.75) over title and text, by the `bm25s` package."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        bm25s: Any = require("bm25s", extra="eval")
        self._bm25s, self._passages = bm25s, list(passages)
        self._index = bm25s.BM25(k1=1.2, b=0.75)
        texts = [f"{passage.title} {passage.text}" for passage in self._passages]
        self._index.index(
            bm25s.tokenize(texts, stopwords="en", show_progress=False),
            show_progress=False,
        )

    def __call__(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return up to `k` passages for each query, best first."""
        if not queries:
            return []
        tokens = self._bm25s.tokenize(
            list(queries), stopwords="en", show_progress=False
        )
        most = min(k, len(self._passages))
        places, scores = self._index.retrieve(tokens, k=most, show_progress=False)
        hits = []
        for row, values in zip(places, scores, strict=True):
            pairs = zip(row, values, strict=True)
            hits.append(
                [
                    self._passages[int(place)].with_score(float(score))
                    for place, score in pairs
                ]
            )
        return hits
