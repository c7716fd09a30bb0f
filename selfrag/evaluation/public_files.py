"""Public files of published tasks: their records, fields and schemas, read strictly into items."""

from __future__ import annotations

import ast
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from retrieval.passage import Passage
from retrieval.reading import filled, parse_json, read_lines, read_whole
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.jsonl import read_jsonl

T = TypeVar("T")
_WHOLE = re.compile(r'\s*(?:\[|\{\s*"data"\s*:|\{\s*$)')
"""How the first line of a file begins that is one JSON value, and not a row a line."""


def read_records(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """Parse every record of a file: JSON Lines, an array, or an object with an array under `data`; `.gz` unpacked.

    Args:
        path: the file.
        parse: makes a value of one object; raises `UserError` for a bad one.

    Raises:
        UserError: the file cannot be read, is empty, or a record is bad; names `file:line`, or the row of an array.
    """
    if _WHOLE.match(next(read_lines(path), "")):
        records = parse_json(read_whole(path), str(path), nan=True, mended=True)
        records = records.get("data") if isinstance(records, dict) else records
        if not isinstance(records, list):
            raise UserError(f"{path}: no array of rows, and none under 'data'")
        found = [_row(path, number, record, parse) for number, record in enumerate(records, 1)]
    else:
        found = list(read_jsonl(path, parse, mended=True))
    if not found:
        raise UserError(f"{path}: no rows; check that this is the right file")
    return found


def _row(path: Path, number: int, record: Any, parse: Callable[[dict[str, Any]], T]) -> T:
    try:
        if not isinstance(record, dict):
            raise UserError(f"a row must be an object, not {type(record).__name__}")
        return parse(record)
    except UserError as error:
        raise UserError(f"{path}: row {number}: {error}; fix this row") from error


Record: TypeAlias = Mapping[str, Any]

IDS = ("id", "qid", "q_id", "question_id", "sample_id", "claim_id")
PASSAGES = ("ctxs", "docs", "top_contexts", "passages")
_TRUTH = {"true": "true", "supports": "true", "false": "false", "refutes": "false"}


def _key(record: Record, names: tuple[str, ...]) -> str:
    """The first of `names` that the record has."""
    for name in names:
        if record.get(name) is not None:
            return name
    raise UserError(f"no {' or '.join(map(repr, names))}; the row has {', '.join(map(repr, list(record)[:12]))}")


def _text(record: Record, *names: str) -> str:
    """A text that is not blank, under the first of `names` that the record has."""
    return filled(record, _key(record, names))


def _id(record: Record) -> str:
    """The record's id as text; empty if it has none, which files of claims do not."""
    for name in IDS:
        if (value := record.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
                raise UserError(f"{name!r} must be text or a whole number, not {value!r:.60}")
            return str(value)
    return ""


def _answers(record: Record, *names: str) -> tuple[str, ...]:
    """Gold answers: a list of texts, one text, or a list written as text, as PopQA has it."""
    name = _key(record, names)
    value = _written(record[name]) if isinstance(record[name], str) else record[name]
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UserError(f"{name!r} must be a list of texts, not {value!r:.60}")
    return _filled(tuple(value), name)


def _answer_sets(record: Record, name: str) -> tuple[tuple[str, ...], ...]:
    """Several gold answers, each with its ways of being written."""
    value = record.get(name)
    good = isinstance(value, list) and all(isinstance(forms, list) for forms in value)
    if value is None or not good or not all(isinstance(form, str) for forms in value for form in forms):
        raise UserError(f"{name!r} must be a list of lists of texts, not {value!r:.60}")
    if not value:
        raise UserError(f"{name!r} is empty: nothing to score the answer by")
    return tuple(_filled(tuple(forms), name) for forms in value)


def _truth(record: Record) -> str:
    """`true` or `false`; FEVER's labels are understood, and as the only answer too."""
    name = _key(record, ("answers", "answer", "label"))
    value = record[name]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    said = str(value).strip().casefold() if isinstance(value, str | bool) else ""
    if said not in _TRUTH:
        raise UserError(f"{name!r} must be true or false (or SUPPORTS, REFUTES), not {value!r:.60}")
    return _TRUTH[said]


def passages_of(record: Record, *, needed: bool) -> tuple[Passage, ...]:
    """The passages that the record brings, best first; an id that occurs again gets a number.

    Args:
        record: the row.
        needed: whether a row without passages is an error.

    Raises:
        UserError: passages are missing, or one has no text.
    """
    name = next((name for name in PASSAGES if record.get(name) is not None), None)
    found = [] if name is None else record[name]
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise UserError(f"{name!r} must be a list of passages")
    if needed and not found:
        wanted = " or ".join(map(repr, PASSAGES[:2]))
        raise UserError(f"no passages: {wanted} is missing or empty; give an index to search for them")
    seen: Counter[str] = Counter()
    passages = []
    for place, one in enumerate(found, 1):
        text, title = one.get("text", one.get("paragraph_text")), one.get("title")
        if not isinstance(text, str) or not (title is None or isinstance(title, str)):
            raise UserError(
                f"passage {place} of {name!r} needs a 'text' that is text, and a 'title' that is text or null"
            )
        own = next((str(one[key]) for key in ("id", "docid", "doc_id") if one.get(key) is not None), f"p{place}")
        seen[own] += 1
        passages.append(Passage(own if seen[own] == 1 else f"{own}#{seen[own]}", text, title or ""))
    return tuple(passages)


def _written(value: str) -> Any:
    """A list that is written as JSON or as Python; any other text is an answer."""
    if not value.lstrip().startswith("["):
        return [value]
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return [value]


def _filled(texts: tuple[str, ...], name: str) -> tuple[str, ...]:
    if not texts:
        raise UserError(f"{name!r} is empty: nothing to score the answer by")
    if not all(text.strip() for text in texts):
        raise UserError(f"{name!r} has a blank answer")
    return texts


QUESTION = ("question", "question_text", "claim", "query")
TRUTH = ("true", "false")


@dataclass(frozen=True, slots=True)
class Schema:
    """How the records of a public file are read."""

    name: str  # in error lines and documentation
    fields: str  # what a record has, for the reader
    marks: tuple[str, ...]  # keys of which a record has one, and records of other schemas do not
    read: Callable[[Record], Item]  # makes an item without passages

    def item(self, record: Record) -> Item:
        """The item of a record.

        Raises:
            UserError: the record is of another schema, or a field is bad.
        """
        if not any(record.get(mark) is not None for mark in self.marks):
            others = [other.name for other in SCHEMAS.values() if other.fits(record)]
            looks = f"; it looks like one of {' or '.join(others)}" if others else ""
            raise UserError(f"no row of {self.name}, which has {self.fields}{looks}")
        return self.read(record)

    def fits(self, record: Record) -> bool:
        """Whether the record can be read as this schema."""
        try:
            return any(record.get(mark) is not None for mark in self.marks) and bool(self.read(record))
        except UserError:
            return False


def _questions(record: Record) -> Item:
    answers = _answers(record, "answers", "possible_answers", "answer")
    return _item(record, _text(record, *QUESTION), answers=answers, references=answers)


def _claims(record: Record) -> Item:
    return _item(record, _text(record, "question", "claim"), label=_truth(record), options=TRUTH)


def _choices(record: Record) -> Item:
    given = record["choices"] if isinstance(record["choices"], Mapping) else {}
    labels, texts = given.get("label"), given.get("text")
    if not isinstance(labels, list) or not isinstance(texts, list) or len(labels) != len(texts):
        raise UserError("'choices' must have 'text' and 'label', two lists of texts of the same length")
    if not all(isinstance(one, str) for one in (*labels, *texts)):
        raise UserError("'text' and 'label' of 'choices' must be lists of texts")
    key = _text(record, "answerKey")
    if key not in labels or len(set(labels)) != len(labels):
        raise UserError(f"'answerKey' {key!r} is none of the labels {', '.join(labels[:26])}, or a label occurs twice")
    if len(labels) > len(string.ascii_uppercase):
        raise UserError(f"{len(labels)} choices, and letters name {len(string.ascii_uppercase)} of them")
    # Some rows number their options; the model sees letters, so that 3 is C.
    right = string.ascii_uppercase[labels.index(key)]
    return _item(record, _text(record, "question"), label=right, options=tuple(texts), free=True)


def _biographies(record: Record) -> Item:
    topic = _text(record, "topic")
    given = record.get("input")
    item = _item(record, topic, topic=topic)
    return item if given is None else replace(item, instruction=_text(record, "input"))


def _ambiguous(record: Record) -> Item:
    pairs = record["qa_pairs"]
    if not isinstance(pairs, list) or not pairs or not all(isinstance(pair, Mapping) for pair in pairs):
        raise UserError("'qa_pairs' must be a list of at least one question with 'short_answers'")
    sets = tuple(_answers(pair, "short_answers") for pair in pairs)
    question = _text(record, "question", "ambiguous_question")
    return _item(record, question, answer_sets=sets, references=_long_answers(record))


def _long_answers(record: Record) -> tuple[str, ...]:
    notes = record.get("annotations")
    if isinstance(notes, list) and notes and all(isinstance(note, Mapping) for note in notes):
        return tuple(_text(note, "long_answer") for note in notes)
    return _answers(record, "answer")


def _lists(record: Record) -> Item:
    if record.get("answer_list") is not None:
        given = record["answer_list"]
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            raise UserError("'answer_list' must be a list of answers with 'answer_text' and 'aliases'")
        found = [[_text(one, "answer_text"), *_aliases(one)] for one in given]
        sets = _answer_sets({"answer_list": [list(dict.fromkeys(forms)) for forms in found]}, "answer_list")
    else:
        sets = _answer_sets(record, "answers")
    flat = tuple(form for forms in sets for form in forms)
    return _item(record, _text(record, *QUESTION), answer_sets=sets, references=flat)


def _aliases(answer: Record) -> list[str]:
    found = answer.get("aliases") or []
    if not isinstance(found, list) or not all(isinstance(alias, str) for alias in found):
        raise UserError("'aliases' must be a list of texts")
    return [alias for alias in found if alias.strip()]


def _item(record: Record, query: str, *, free: bool = False, **fields: Any) -> Item:
    return Item(_id(record), query, needs_retrieval=None if free else True, query=query, **fields)


SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        one.name: one
        for one in (
            Schema("questions", "question, answers (or possible_answers), ctxs", QUESTION, _questions),
            Schema("claims", "question or claim, answers or label true or false, ctxs", ("question", "claim"), _claims),
            Schema("choices", "question, choices {text, label}, answerKey, ctxs", ("choices",), _choices),
            Schema("biographies", "topic, input, ctxs", ("topic",), _biographies),
            Schema("ambiguous", "question, qa_pairs [short_answers], annotations [long_answer], docs", ("qa_pairs",),
                   _ambiguous),
            Schema("lists", "question, answers [[...]] (or question_text, answer_list), docs",
                   ("answers", "answer_list"), _lists),
        )
    }
)  # fmt: skip
"""By name."""
