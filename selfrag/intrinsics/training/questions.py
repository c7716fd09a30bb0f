"""Questions with options of which one is right: what a model's own certainty is measured on. Files and form only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.errors import UserError
from selfrag.jsonl import read_identified


@dataclass(frozen=True, slots=True)
class Question:
    """One row.

    Attributes:
        id: unique in its file.
        dataset: where it is from.
        question: what is asked.
        options: possible answers, distinct.
        right: index of the right one.
    """

    id: str
    dataset: str
    question: str
    options: tuple[str, ...]
    right: int


def read_questions(path: str | Path) -> list[Question]:
    """Read a JSONL file (`.gz` allowed): id, dataset, question, options and label, which is a letter.

    Raises:
        UserError: the file cannot be read, or a line is no such row, by `file:line`.
    """
    return list(read_identified(path, parse_question))


def unseen(questions: list[Question], seen: Collection[str]) -> list[Question]:
    """Questions none of `seen` contains; a model is too sure of what it was trained on."""
    known = [" ".join(text.casefold().split()) for text in seen]
    joined = "\n".join(known)
    return [one for one in questions if " ".join(one.question.casefold().split()) not in joined]


def parse_question(record: Mapping[str, Any]) -> Question:
    """Check one object. An option that is given twice is one option.

    Raises:
        UserError: a field is missing or of the wrong type, two options are not different, or the label names none.
    """
    for key in ("id", "dataset", "question", "label"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise UserError(f"{key!r} must be text that is not empty, not {record.get(key)!r:.80}")
    options = record.get("options")
    if not isinstance(options, list) or not all(isinstance(one, str) and one.strip() for one in options):
        raise UserError("'options' must be a list of texts that are not empty")
    stripped = [one.strip() for one in options]
    distinct = tuple(dict.fromkeys(stripped))
    if len(distinct) < 2:
        raise UserError("'options' must be at least two different texts")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(stripped)]
    if record["label"] not in letters:
        raise UserError(f"label {record['label']!r} names none of the {len(stripped)} options; write A, B, ...")
    right = distinct.index(stripped[letters.index(record["label"])])
    return Question(record["id"], record["dataset"], record["question"], distinct, right)
