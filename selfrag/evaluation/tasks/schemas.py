"""Schemas of public files: how a record becomes an item. A preset names its schema; file names decide nothing.

What a record asks for is the item's `query`; wordings put instructions around it later. Fields are those of the files
that Self-RAG, ALCE, QAMPARI and FactScore publish.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.tasks.fields import Record, answer_sets_of, answers_of, id_of, text_of, truth_of

QUESTION = ("question", "question_text", "claim", "query")
TRUTH = ("true", "false")


@dataclass(frozen=True, slots=True)
class Schema:
    """How the records of a public file are read.

    Attributes:
        name: in error lines and documentation.
        fields: what a record has, for the reader.
        marks: keys of which a record has one, and records of other schemas do not.
        read: makes an item without passages.
    """

    name: str
    fields: str
    marks: tuple[str, ...]
    read: Callable[[Record], Item]

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
    answers = answers_of(record, "answers", "possible_answers", "answer")
    return _item(record, text_of(record, *QUESTION), answers=answers, references=answers)


def _claims(record: Record) -> Item:
    return _item(record, text_of(record, "question", "claim"), label=truth_of(record), options=TRUTH)


def _choices(record: Record) -> Item:
    given = record["choices"] if isinstance(record["choices"], Mapping) else {}
    labels, texts = given.get("label"), given.get("text")
    if not isinstance(labels, list) or not isinstance(texts, list) or len(labels) != len(texts):
        raise UserError("'choices' must have 'text' and 'label', two lists of texts of the same length")
    if not all(isinstance(one, str) for one in (*labels, *texts)):
        raise UserError("'text' and 'label' of 'choices' must be lists of texts")
    key = text_of(record, "answerKey")
    if key not in labels or len(set(labels)) != len(labels):
        raise UserError(f"'answerKey' {key!r} is none of the labels {', '.join(labels[:26])}, or a label occurs twice")
    if len(labels) > len(string.ascii_uppercase):
        raise UserError(f"{len(labels)} choices, and letters name {len(string.ascii_uppercase)} of them")
    # Some rows number their options; the model sees letters, so that 3 is C.
    right = string.ascii_uppercase[labels.index(key)]
    return _item(record, text_of(record, "question"), label=right, options=tuple(texts), free=True)


def _biographies(record: Record) -> Item:
    topic = text_of(record, "topic")
    given = record.get("input")
    item = _item(record, topic, topic=topic)
    return item if given is None else replace(item, instruction=text_of(record, "input"))


def _ambiguous(record: Record) -> Item:
    pairs = record["qa_pairs"]
    if not isinstance(pairs, list) or not pairs or not all(isinstance(pair, Mapping) for pair in pairs):
        raise UserError("'qa_pairs' must be a list of at least one question with 'short_answers'")
    sets = tuple(answers_of(pair, "short_answers") for pair in pairs)
    question = text_of(record, "question", "ambiguous_question")
    return _item(record, question, answer_sets=sets, references=_long_answers(record))


def _long_answers(record: Record) -> tuple[str, ...]:
    notes = record.get("annotations")
    if isinstance(notes, list) and notes and all(isinstance(note, Mapping) for note in notes):
        return tuple(text_of(note, "long_answer") for note in notes)
    return answers_of(record, "answer")


def _lists(record: Record) -> Item:
    if record.get("answer_list") is not None:
        given = record["answer_list"]
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            raise UserError("'answer_list' must be a list of answers with 'answer_text' and 'aliases'")
        found = [[text_of(one, "answer_text"), *_aliases(one)] for one in given]
        sets = answer_sets_of({"answer_list": [list(dict.fromkeys(forms)) for forms in found]}, "answer_list")
    else:
        sets = answer_sets_of(record, "answers")
    flat = tuple(form for forms in sets for form in forms)
    return _item(record, text_of(record, *QUESTION), answer_sets=sets, references=flat)


def _aliases(answer: Record) -> list[str]:
    found = answer.get("aliases") or []
    if not isinstance(found, list) or not all(isinstance(alias, str) for alias in found):
        raise UserError("'aliases' must be a list of texts")
    return [alias for alias in found if alias.strip()]


def _item(record: Record, query: str, *, free: bool = False, **fields: Any) -> Item:
    return Item(id_of(record), query, needs_retrieval=None if free else True, query=query, **fields)


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
