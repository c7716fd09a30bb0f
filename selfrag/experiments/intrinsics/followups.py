"""Follow-up questions with known passages: made from questions that name the title of their gold passage. Pure.

    "When did Goethe write Faust?", gold passage "Faust"  ->  Tell me about Faust. / When did Goethe write it?

The question as it was is the gold rewrite. Data with conversations have no relevance judgments of this corpus, and
data with judgments have no conversations; this is the smallest step between them, and it is one kind of reference only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.intrinsics.state import Message, State
from selfrag.jsonl import read_jsonl

PRONOUN = "it"
_SHORT = 4  # letters; shorter titles are words of the language as often as names


@dataclass(frozen=True, slots=True)
class Turn:
    """A question at the end of a conversation.

    Attributes:
        id: of the query, with `/follow-up` where it was made dependent.
        state: the conversation.
        gold: the question that stands alone.
        relevant: ids of its passages.
        standalone: whether the last turn can be understood by itself.
        answers: short answers, if known.
    """

    id: str
    state: State
    gold: str
    relevant: frozenset[str]
    standalone: bool
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Collection:
    """A corpus with judged queries.

    Attributes:
        passages: by id.
        queries: id -> text and short answers, of one split.
        relevant: id of a query -> ids of its passages.
    """

    passages: Mapping[str, Passage]
    queries: Mapping[str, tuple[str, tuple[str, ...]]]
    relevant: Mapping[str, frozenset[str]]


def read_collection(folder: Path, split: str) -> Collection:
    """Read `wiki-mix.jsonl.gz` (or `corpus.jsonl`), `queries.jsonl` and `qrels.tsv`.

    Raises:
        UserError: a file is missing or bad.
    """
    texts = next((p for name in ("wiki-mix.jsonl.gz", "corpus.jsonl") if (p := folder / name).is_file()), None)
    if texts is None:
        raise UserError(f"{folder} has no corpus.jsonl; give a folder with corpus, queries.jsonl and qrels.tsv")
    passages = {one.id: one for one in read_jsonl(texts, _passage)}
    queries = {i: (text, answers) for i, text, answers in read_jsonl(folder / "queries.jsonl", _query(split)) if i}
    relevant: dict[str, set[str]] = {}
    try:
        lines = (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]
    except OSError as error:
        raise UserError(f"{folder / 'qrels.tsv'} cannot be read: {error}") from error
    for number, line in enumerate(lines, 2):
        fields = line.split("\t")
        if len(fields) != 3:
            raise UserError(f"{folder / 'qrels.tsv'}:{number}: not query, passage and score; fix this line")
        if fields[2] != "0":
            relevant.setdefault(fields[0], set()).add(fields[1])
    return Collection(passages, queries, {key: frozenset(found) for key, found in relevant.items()})


def turns(collection: Collection) -> list[Turn]:
    """For each question that names its passage's title: the follow-up, and the question itself after another topic."""
    made: list[Turn] = []
    openings: list[str] = []
    for key, (text, answers) in sorted(collection.queries.items()):
        relevant = frozenset(one for one in collection.relevant.get(key, ()) if one in collection.passages)
        title = next((found for one in sorted(relevant) if (found := named(text, collection.passages[one].title))), "")
        if not title:
            continue
        opening = f"Tell me about {title}."
        dependent = (Message("user", opening), Message("user", replaced(text, title)))
        made.append(Turn(f"{key}/follow-up", State(dependent), text, relevant, False, answers))
        if openings and openings[-1] != opening:
            alone = (Message("user", openings[-1]), Message("user", text))
            made.append(Turn(key, State(alone), text, relevant, True, answers))
        openings.append(opening)
    return made


def named(question: str, title: str) -> str:
    """The title, without what is in brackets, if the question has it as whole words; else nothing."""
    plain = (title.partition("(")[0] if title.rstrip().endswith(")") else title).strip()
    if len(plain) < _SHORT:
        return ""
    found = re.search(rf"(?<!\w){re.escape(plain)}(?!\w)", question, re.IGNORECASE)
    return plain if found else ""


def replaced(question: str, title: str) -> str:
    """The question with its title (and an article before it) as a pronoun."""
    pattern = rf"(?<!\w)(?:the\s+)?{re.escape(title)}(?!\w)('s)?"
    return re.sub(pattern, lambda m: "its" if m.group(1) else PRONOUN, question, flags=re.IGNORECASE)


def _passage(record: dict[str, Any]) -> Passage:
    try:
        return Passage(record["id"], record["text"], record.get("title", ""))
    except KeyError as error:
        raise UserError(f"a passage lacks {error}") from error


def _query(split: str) -> Any:
    def parse(record: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
        if not isinstance(record.get("id"), str) or not isinstance(record.get("text"), str):
            raise UserError("a query has 'id' and 'text'")
        answers = record.get("answers") or []
        return (record["id"] if record.get("split") == split else "", record["text"], tuple(map(str, answers)))

    return parse


def sample(found: Sequence[Turn], limit: int | None) -> list[Turn]:
    """At most `limit`, evenly over the list, dependent and standalone ones alike."""
    if limit is None or len(found) <= limit:
        return list(found)
    sides = [[one for one in found if one.standalone is side] for side in (False, True)]
    half = [limit - limit // 2, limit // 2]
    return [
        one for side, most in zip(sides, half, strict=True) for one in side[:: max(1, len(side) // max(1, most))][:most]
    ]
