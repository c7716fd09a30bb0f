"""Labelled conversations: one JSON object a line, for each intrinsic in the form in which such data come.

Knows the files and their rules of form. Character offsets are the annotator's; which sentence of a codec they mean is
decided in `gold`. Read strictly: a bad row is named by file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.intrinsics.state import State, read_state
from selfrag.jsonl import read_identified

T = TypeVar("T")
Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Labelled:
    """What is right about one state.

    Attributes:
        id: unique in its file.
        source: data set and label, such as `squad2/answerable`; training spreads by it, reports go by it.
        group: rows of one group belong together when rows are held out.
        state: conversation and passages.
        label: name of the one label.
        text: what is to be written.
        spans: labels of stretches of the last message.
        response: label of the whole last message, where nobody judged its sentences.
        citations: stretches of the last message, each with the passage's index and the stretch of it.
    """

    id: str
    source: str
    group: str
    state: State
    label: str | None = None
    text: str | None = None
    spans: tuple[tuple[Span, str], ...] | None = None
    response: str | None = None
    citations: tuple[tuple[Span, int, Span], ...] | None = None


Parse: TypeAlias = Callable[[dict[str, Any]], Labelled]


def read_labelled(path: str | Path, intrinsic: str) -> list[Labelled]:
    """Read a JSONL file (`.gz` allowed) of rows of one intrinsic.

    Raises:
        UserError: unknown intrinsic; the file cannot be read, or a line is no such row, by `file:line`.
    """
    return list(read_identified(path, parser(intrinsic)))


def evenly(rows: Sequence[T], wanted: int) -> list[T]:
    """`wanted` of the rows, all if there are no more, at equal distances."""
    wanted = min(wanted, len(rows))
    return [rows[at * len(rows) // wanted] for at in range(wanted)]


def parser(intrinsic: str) -> Parse:
    """What reads the rows of an intrinsic.

    Raises:
        UserError: no rows are known for it.
    """
    try:
        return PARSERS[intrinsic]
    except KeyError:
        raise UserError(f"no training rows are known for {intrinsic!r}; known: {', '.join(sorted(PARSERS))}") from None


def _rewrite(record: dict[str, Any]) -> Labelled:
    text, changed = _text(record, "rewrite"), record.get("changed")
    if not isinstance(changed, bool):
        raise UserError(f"'changed' must be true or false, not {changed!r}")
    state = _state(record, "user")
    kind = "changed" if changed else "unchanged"
    return Labelled(_text(record, "id"), _source(record, kind), state.messages[0].content, state, text=text)


def _answerability(record: dict[str, Any]) -> Labelled:
    label = _text(record, "label")
    if label not in ("answerable", "unanswerable"):
        raise UserError(f"unknown label {label!r}; known: answerable, unanswerable")
    state = _state(record, "user")
    return Labelled(_text(record, "id"), _source(record, label), _passages(state), state, label=label)


def _hallucination(record: dict[str, Any]) -> Labelled:
    state = _state(record, "assistant")
    level = record.get("label_level")
    if level not in ("sentence", "response"):
        raise UserError(f"'label_level' must be sentence or response, not {level!r}")
    spans = [
        (_span(one, "begin", "end", len(state.messages[-1].content)), _text(one, "label"))
        for one in _list(record, "sentences")
    ]
    if unknown := {label for _, label in spans} - set(WORSE):
        raise UserError(f"unknown label {min(unknown)!r}; known: {', '.join(WORSE)}")
    worst = max((label for _, label in spans), key=WORSE.index, default="NA")
    given: dict[str, Any] = {"spans": tuple(spans)} if level == "sentence" else {"response": worst}
    return Labelled(_text(record, "id"), _source(record, f"{worst} {level}"), _passages(state), state, **given)


def _citations(record: dict[str, Any]) -> Labelled:
    state = _state(record, "assistant")
    index = {passage.id: number for number, passage in enumerate(state.passages)}
    found = []
    for one in _list(record, "citations"):
        passage = index.get(_text(one, "doc_id"))
        if passage is None:
            raise UserError(f"a citation of {one['doc_id']!r}, which is no document of this row")
        response = _span(one, "response_begin", "response_end", len(state.messages[-1].content))
        evidence = _span(one, "doc_begin", "doc_end", len(state.passages[passage].text))
        found.append((response, passage, evidence))
    source = _source(record, "cited" if found else "uncited")
    return Labelled(_text(record, "id"), source, _passages(state), state, citations=tuple(found))


def _certainty(record: dict[str, Any]) -> Labelled:
    state = _state(record, "user", "assistant")
    moment = "after" if state.messages[-1].role == "assistant" else "before"
    label = _text(record, "certainty")
    if label not in CERTAINTIES:
        raise UserError(f"unknown certainty {label!r}; known: {', '.join(CERTAINTIES)}")
    return Labelled(_text(record, "id"), f"{moment}/{label}", state.messages[0].content, state, label=label)


WORSE = ("NA", "faithful", "partial", "unfaithful")
"""Labels of sentences; a response is as bad as its worst one."""

CERTAINTIES = tuple(f"{5 + 10 * decile}%" for decile in range(10))

PARSERS: Mapping[str, Parse] = {
    "query_rewrite": _rewrite,
    "answerability": _answerability,
    "hallucination_detection": _hallucination,
    "citation_generation": _citations,
    "uncertainty": _certainty,
}
"""Rows of `uncertainty` are made from a model's own answers; see `own_answers`."""


def _state(record: Mapping[str, Any], *last: str) -> State:
    documents = record.get("documents") or []
    if not isinstance(documents, list):
        raise UserError(f"'documents' must be a list, not {type(documents).__name__}")
    state = read_state(_list(record, "conversation"), documents)
    if state.messages[-1].role not in last:
        raise UserError(f"the conversation ends with {state.messages[-1].role!r}, not with {' or '.join(last)}")
    return state


def _source(record: Mapping[str, Any], kind: str) -> str:
    return f"{record.get('dataset') or 'rows'}/{kind}"


def _passages(state: State) -> str:
    return "\n".join(_identity(passage) for passage in state.passages)


def _identity(passage: Passage) -> str:
    return passage.title or passage.text


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key)
    if not isinstance(value, list):
        raise UserError(f"{key!r} must be a list, not {type(value).__name__}")
    return value


def _span(record: Any, begin: str, end: str, length: int) -> Span:
    values = (record.get(begin), record.get(end)) if isinstance(record, Mapping) else (None, None)
    first, last = values
    if not (type(first) is int and type(last) is int and 0 <= first < last <= length):
        raise UserError(f"{begin!r} and {end!r} are no stretch of {length} characters: {values}")
    return first, last


def _text(record: Any, key: str) -> str:
    value = record.get(key) if isinstance(record, Mapping) else None
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{key!r} must be text that is not empty, not {value!r:.80}")
    return value
