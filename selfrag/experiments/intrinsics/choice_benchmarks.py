"""Multiple choice as rows of certainty (sections 3.2 and 3.3 of the intrinsics paper): MMLU, and thirteen hub sets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Formatter, ascii_uppercase
from typing import Any

from selfrag.common.public_fields import (
    PublicRow,
    UnusableError,
)
from selfrag.common.public_rows import RawRow
from selfrag.experiments.intrinsics.conversations import csv_lines
from selfrag.experiments.intrinsics.public_benchmarks import BenchmarkRow
from selfrag.interface import UserError, validate


def read_mmlu(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
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


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """How the rows of a data set become a question with options; fields of the row stand in braces."""

    question: str
    options: tuple[str, ...]
    right: str = "label"  # field with the place of the right option
    first: int = 0  # place of the first option
    name: str = ""  # the file's name begins with it, where the fields do not tell

    def matches(self, record: Mapping[str, Any], path: Path) -> bool:
        """Return whether a row of this file has the fields."""
        fields = {self.right}
        for template in (self.question, *self.options):
            fields |= {name for _, name, _, _ in Formatter().parse(template) if name}
        return fields <= record.keys() and path.name.startswith(self.name)

    def parts(self, record: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return the question, the options and the place of the right one."""
        options = [template.format_map(record) for template in self.options]
        place = str(record[self.right])
        right = int(place) - self.first if place.isdecimal() else -1
        return self.question.format_map(record), options, right


_TOML = files(__package__).joinpath("choice_forms.toml").read_text(encoding="utf-8")
FORMS = tuple(validate(ChoiceForm, form) for form in tomllib.loads(_TOML)["form"])
"""Of PIQA, SocialIQA, MedMCQA, Fig-QA, SuperGLUE and AG News."""


def read_choices(raw: RawRow, path: Path) -> Iterator[BenchmarkRow]:
    """Multiple choice of section 3.3 as on the hub: thirteen of its sets, named after the file.

    ARC-Easy, OpenBookQA, CommonsenseQA and RiddleSense: {"question" or "question_stem": "..", "choices": {"text": [..],
    "label": [..]}, "answerKey": "A"}; BIG-bench, CODAH, DREAM and ReCoRD: their own; the others in `FORMS`.
    """
    question, options, right = _parts_of_choice(raw.record, path)
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


def _parts_of_choice(record: Mapping[str, Any], path: Path) -> tuple[Any, Any, Any]:
    """Return the question, the options and the place of the right one, which is -1 where none is."""
    for form in FORMS:
        if form.matches(record, path):
            return form.parts(record)
    match record:
        case {"choices": _, "answerKey": key}:
            row = PublicRow.of("choices", record)
            names = [option["label"] for option in row["options"]]
            options = [option["text"] for option in row["options"]]
            return row["stem"], options, _place(key, names)
        case {
            "inputs": question,
            "multiple_choice_targets": [*options],
            "multiple_choice_scores": [*scores],
        }:
            if scores.count(1) != 1:
                raise UnusableError("a question without one right option")
            return question, options, scores.index(1)
        case {
            "question_propmt": question,
            "candidate_answers": [*options],
            "correct_answer_idx": right,
        }:
            return question, options, right
        case {
            "dialogue": [*turns],
            "question": question,
            "choice": [*options],
            "answer": answer,
        }:
            text = "\n".join(map(str, [*turns, question]))
            return text, options, _place(answer, options)
        case {
            "passage": passage,
            "query": query,
            "entities": [*options],
            "answers": [*right],
        }:
            if len(right) != 1:
                raise UnusableError("a question without one right option")
            question = f"{passage}\nWhat is @placeholder here: {query}"
            return question, options, _place(right[0], options)
    keys = ", ".join(map(repr, list(record)[:12]))
    raise UserError(f"no multiple choice in a row with {keys}")


def _place(right: object, options: Sequence[object]) -> int:
    """Return where the right option stands, or -1."""
    return options.index(right) if right in options else -1


def read_csv(path: Path) -> Iterator[RawRow]:
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
