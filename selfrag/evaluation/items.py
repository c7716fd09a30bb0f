"""`Item`: one row of an evaluation file, whatever its schema, and the rows of `eval/dev`, read strictly.

What a row does not say is None, and figures that would need it leave the row out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.reading import filled
from selfrag.jsonl import read_jsonl
from selfrag.prompting import SELFRAG

TASK_INPUT = SELFRAG.task_input
"""Stands between a task's wording and its question in the instruction."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question, claim or instruction to evaluate on."""

    id: str  # as in the file
    instruction: str  # what the model is asked
    needs_retrieval: bool | None  # whether it should retrieve; None where either is fine or unknown
    passages: tuple[Passage, ...] = ()  # evidence to answer from, in the order of the file
    gold: frozenset[str] | None = None  # ids of the passages that answer; None if the file does not say
    # short answers of which one should be contained; None where that is no measure
    answers: tuple[str, ...] | None = None
    label: str | None = None  # right answer of a closed task
    answerable: bool | None = None  # whether the passages answer the question; None if the file does not say
    task: str = ""  # kind of task as the file names it; empty outside of `eval` files
    options: tuple[str, ...] = ()  # options of a multiple-choice item, in the order of the file
    references: tuple[str, ...] = ()  # every reference answer of the file, long ones too
    query: str = ""  # the question without the task's wording, where the two can be told apart
    # of a question with several right answers, the ways of writing each of them; empty where the file does not
    # say
    answer_sets: tuple[tuple[str, ...], ...] = ()
    # statements that a complete answer makes (ALCE's ELI5); empty where the file does not say
    claims: tuple[str, ...] = ()
    topic: str = ""  # name of what the answer is about (biographies); empty where the file does not say
    # names of the metrics that the file wants to be scored by; empty leaves it to the kind of task
    metrics: tuple[str, ...] = ()
    # a multiple-choice item that is asked without its options, whose texts are scored (`tasks.choices.in_form`)
    cloze: bool = False


def read_items(path: Path, parse: Callable[[dict[str, Any]], Item | None]) -> list[Item]:
    """All items of a `.jsonl` or `.jsonl.gz` file.

    Args:
        path: the file.
        parse: makes an item of a row, such as `item_of`; raises `UserError` for a bad one, and leaves out None.

    Raises:
        UserError: a row is bad (names `file:line`), or no row is left.
    """
    items = [item for item in read_jsonl(path, parse, mended=True) if item is not None]
    if not items:
        raise UserError(f"{path}: no rows; check the file")
    return items


def item_of(record: Mapping[str, Any]) -> Item:
    """The item of a row in the schema of `eval/dev`: `task`, `id`, `instruction`, what is right, `passages`.

    Raises:
        UserError: the row has no such keys, or other values in them.
    """
    if "task" not in record:
        raise UserError(
            "unknown kind of row: key 'task' is missing; a row in the schema of eval/dev has it, and a file of a"
            " published task is given as TASK=FILE (selfrag eval tasks)"
        )
    task = filled(record, "task")
    closed = "options" in record
    passages = passages_of(record, "passages", "id") if "passages" in record else ()
    label = filled(record, "label") if "label" in record else None
    instruction = filled(record, "instruction")
    sets = _answer_sets(record)
    flat = tuple(form for forms in sets for form in forms)
    return Item(
        filled(record, "id"),
        instruction,
        # Multiple choice may be answered either way.
        needs_retrieval=None if task == "multiple_choice" else True,
        passages=passages,
        gold=_gold(record, passages),
        # A long human answer is not contained in a model's answer; closed tasks are scored by their label.
        answers=(flat or _texts(record, "answers")) if task.startswith("short_qa") else None,
        label=label if closed else None,
        answerable=None if closed or label is None else is_answerable(label),
        task=task,
        options=_texts(record, "options") if closed else (),
        references=flat or (_texts(record, "answers") if "answers" in record else ()),
        answer_sets=sets,
        query=filled(record, "question") if "question" in record else instruction.partition(TASK_INPUT)[2],
        claims=_texts(record, "claims") if "claims" in record else (),
        topic=filled(record, "topic") if "topic" in record else "",
        metrics=_texts(record, "metrics") if "metrics" in record else (),
    )


def _answer_sets(record: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Several right answers, each a list of its ways of being written; none where `answers` is a list of texts."""
    found = record.get("answers")
    if not isinstance(found, list) or not any(isinstance(forms, list) for forms in found):
        return ()
    for forms in found:
        texts = isinstance(forms, list) and all(isinstance(form, str) and form.strip() for form in forms)
        if not texts or not forms:
            raise UserError("'answers' must be a list of texts, or of lists of at least one text each")
    return tuple(tuple(forms) for forms in found)


def _gold(record: Mapping[str, Any], passages: tuple[Passage, ...]) -> frozenset[str] | None:
    """Ids of the gold passages, or of those whose title the file names as support; None if it says neither."""
    if "gold_passage_ids" in record:
        return frozenset(_texts(record, "gold_passage_ids"))
    support = record.get("support")
    if isinstance(support, list) and support and all(isinstance(title, str) for title in support):
        return frozenset(passage.id for passage in passages if passage.title in support)
    return None


def is_answerable(label: str) -> bool:
    """What a label says; raises `UserError` for any other text."""
    if label not in ("answerable", "unanswerable"):
        raise UserError(f"'label' must be answerable or unanswerable, not {label!r}")
    return label == "answerable"


def passages_of(record: Mapping[str, Any], key: str, id_key: str) -> tuple[Passage, ...]:
    """The passages under a key; raises `UserError` where there are none or one has no text."""
    found = record.get(key)
    if not isinstance(found, list) or not all(isinstance(passage, dict) for passage in found):
        raise UserError(f"{key!r} must be a list of passages")
    return tuple(Passage(filled(p, id_key), filled(p, "text"), str(p.get("title") or "")) for p in found)


def _texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = record.get(key)
    if not isinstance(found, list) or not all(isinstance(value, str) for value in found):
        raise UserError(f"{key!r} must be a list of texts")
    return tuple(found)
