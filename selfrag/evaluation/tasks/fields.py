"""Fields of public records, read strictly: text, lists of answers, passages, true and false. Knows no schema.

Public files differ in what they call the same thing; each function takes the names in the order of preference.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.errors import UserError

Record: TypeAlias = Mapping[str, Any]

IDS = ("id", "qid", "q_id", "question_id", "sample_id", "claim_id")
PASSAGES = ("ctxs", "docs", "top_contexts", "passages")
_TRUTH = {"true": "true", "supports": "true", "false": "false", "refutes": "false"}


def key_of(record: Record, names: tuple[str, ...]) -> str:
    """The first of `names` that the record has.

    Raises:
        UserError: it has none of them.
    """
    for name in names:
        if record.get(name) is not None:
            return name
    raise UserError(f"no {' or '.join(map(repr, names))}; the row has {', '.join(map(repr, list(record)[:12]))}")


def text_of(record: Record, *names: str) -> str:
    """A text that is not blank.

    Raises:
        UserError: there is none.
    """
    name = key_of(record, names)
    value = record[name]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{name!r} must be text that is not empty, not {value!r:.60}")
    return value


def id_of(record: Record) -> str:
    """The record's id as text; empty if it has none, which files of claims do not.

    Raises:
        UserError: the id is neither text nor a whole number.
    """
    for name in IDS:
        if (value := record.get(name)) is not None:
            if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
                raise UserError(f"{name!r} must be text or a whole number, not {value!r:.60}")
            return str(value)
    return ""


def answers_of(record: Record, *names: str) -> tuple[str, ...]:
    """Gold answers: a list of texts, one text, or a list written as text, as PopQA has it.

    Raises:
        UserError: there is none, or one is blank.
    """
    name = key_of(record, names)
    value = record[name]
    if isinstance(value, str):
        value = _written(value)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UserError(f"{name!r} must be a list of texts, not {value!r:.60}")
    return _filled(tuple(value), name)


def answer_sets_of(record: Record, name: str) -> tuple[tuple[str, ...], ...]:
    """Several gold answers, each with its ways of being written.

    Raises:
        UserError: it is no list of lists of texts, or one of them is empty.
    """
    value = record.get(name)
    good = isinstance(value, list) and all(isinstance(forms, list) for forms in value)
    if value is None or not good or not all(isinstance(form, str) for forms in value for form in forms):
        raise UserError(f"{name!r} must be a list of lists of texts, not {value!r:.60}")
    if not value:
        raise UserError(f"{name!r} is empty: nothing to score the answer by")
    return tuple(_filled(tuple(forms), name) for forms in value)


def truth_of(record: Record) -> str:
    """`true` or `false`; FEVER's labels are understood, and as the only answer too.

    Raises:
        UserError: neither of them, or several answers.
    """
    name = key_of(record, ("answers", "answer", "label"))
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
