"""Multiple-choice science questions in the schemas of AI2: Hugging Face rows and the original JSON lines.

    {"id": "..", "question": "..", "choices": {"text": [..], "label": ["A", ..]}, "answerKey": "C"}          ARC
    {"id": "..", "question_stem": "..", "choices": {"text": [..], "label": ["A", ..]}, "answerKey": "C"}     OpenBookQA
    {"id": "..", "question": {"stem": "..", "choices": [{"text": "..", "label": "A"}, ..]}, "answerKey": "C"}  both

Options are lettered by position whatever they were called: some ARC questions call them 1 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase

from critic.pairs import Pair
from critic.sources.fields import identifier, objects, text
from critic.sources.instructions import asked, multiple_choice
from critic.sources.raw import Raw, UnusableError, make_pair, rowwise
from retrieval.errors import UserError


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a question; the output is the letter of the right option.

    Raises:
        UserError: the row is malformed, there are fewer than two options, two have one label, or the key is none.
        UnusableError: the question is blank.
    """
    record = raw.record
    nested = record.get("question")
    if isinstance(nested, Mapping):
        stem, options = text(nested, "stem"), objects(nested, "choices")
    else:
        stem = text(record, "question_stem" if "question_stem" in record else "question")
        options = objects(record, "choices")
    labels, key = [text(option, "label") for option in options], text(record, "answerKey")
    if not 2 <= len(labels) <= len(ascii_uppercase) or len(set(labels)) < len(labels):
        raise UserError(f"the options are labelled {', '.join(labels)[:60] or 'not at all'}; 2 to 26 different ones")
    if key not in labels:
        raise UserError(f"'answerKey' {key!r:.60} is none of the labels {', '.join(labels)}")
    if not stem.strip():
        raise UnusableError("no instruction")
    letters = ascii_uppercase[: len(labels)]
    lines = [f"{letter}: {text(option, 'text')}" for letter, option in zip(letters, options, strict=True)]
    instruction = asked(multiple_choice(letters), "\n".join([stem.strip(), *lines]))
    name = f"{dataset}-{identifier(record, 'id')}"
    return make_pair(name, dataset, "multiple_choice", instruction, letters[labels.index(key)])


read = rowwise(parse)
