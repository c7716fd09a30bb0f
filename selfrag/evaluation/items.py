"""`Item`: one row of an evaluation file, whatever its schema. Reads files strictly; runs nothing.

Understood are the rows of `eval` files (`task`, `passages`, `gold_passage_ids`), of answerability files
(`conversation`, `documents`), of instruction/output pairs (`kind`), of critic files (`group`) and of training rows
(`target`). What a row does not say is None, and figures that would need it leave the row out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.jsonl import read_jsonl
from selfrag.prompting import SELFRAG
from selfrag.training.rows import Token, parse_row

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
    options: tuple[str, ...] = ()  # texts of a closed set, in the order of the file
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
    # a closed set that is asked without its options, whose texts are scored (`tasks.choices.in_form`)
    cloze: bool = False


def read_items(
    path: Path, where: Mapping[str, str] | None = None, *, check: Callable[[Item], Item] | None = None
) -> list[Item]:
    """All items of a `.jsonl` or `.jsonl.gz` file.

    Args:
        path: the file.
        where: keep rows with these values only, such as `{"rule": "instruction_without_lookup"}`.
        check: looks at each item, may change it, and raises `UserError` for a bad one.

    Raises:
        UserError: a row is bad (names `file:line`), or no row is left.
    """
    wanted = where or {}

    def parse(record: dict[str, Any]) -> Item | None:
        if missing := sorted(set(wanted) - set(record)):
            raise UserError(f"no key {missing[0]!r} to filter on")
        if any(str(record[key]) != value for key, value in wanted.items()):
            return None
        item = _item(record)
        return item if check is None else check(item)

    items = [item for item in read_jsonl(path, parse, mended=True) if item is not None]
    if not items:
        raise UserError(f"{path}: no rows{' with ' + str(dict(wanted)) if wanted else ''}; check the file and --where")
    return items


def _item(record: dict[str, Any]) -> Item:
    if "task" in record:
        return _task(record)
    if "conversation" in record:
        return _answerability(record)
    if "target" in record:
        return _training(record)
    if "group" in record:
        return _critic(record)
    if "kind" in record:
        return Item(_text(record, "id"), _text(record, "instruction"), _text(record, "kind") != "instruction")
    raise UserError(
        "unknown kind of row: it has none of 'task', 'conversation', 'target', 'group', 'kind'; a file of a published"
        " task is given as TASK=FILE (selfrag eval tasks)"
    )


def _task(record: dict[str, Any]) -> Item:
    task = _text(record, "task")
    closed = "options" in record
    passages = _passages(record, "passages", "id") if "passages" in record else ()
    label = _text(record, "label") if "label" in record else None
    instruction = _text(record, "instruction")
    sets = _answer_sets(record)
    flat = tuple(form for forms in sets for form in forms)
    return Item(
        _text(record, "id"),
        instruction,
        # Multiple choice may be answered either way.
        needs_retrieval=None if task == "multiple_choice" else True,
        passages=passages,
        gold=_gold(record, passages),
        # A long human answer is not contained in a model's answer; closed tasks are scored by their label.
        answers=(flat or _texts(record, "answers")) if task.startswith("short_qa") else None,
        label=label if closed else None,
        answerable=None if closed or label is None else _answerable(label),
        task=task,
        options=_texts(record, "options") if closed else (),
        references=flat or (_texts(record, "answers") if "answers" in record else ()),
        answer_sets=sets,
        query=_text(record, "question") if "question" in record else instruction.partition(TASK_INPUT)[2],
        claims=_texts(record, "claims") if "claims" in record else (),
        topic=_text(record, "topic") if "topic" in record else "",
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


def _answerability(record: dict[str, Any]) -> Item:
    turns = record["conversation"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[-1], dict):
        raise UserError("'conversation' must be a list of turns")
    if len(turns) != 1:
        raise UserError(f"a conversation of {len(turns)} turns; only single questions can be asked")
    passages = _passages(record, "documents", "doc_id")
    answerable = _answerable(_text(record, "label"))
    return Item(_text(record, "id"), _text(turns[-1], "content"), True, passages, answerable=answerable)


def _training(record: dict[str, Any]) -> Item:
    row = parse_row(record)
    first = row.target[0]
    return Item(row.id, row.instruction, first == Token("[Retrieval]"))


def _critic(record: dict[str, Any]) -> Item:
    first = _text(record, "group") == "Retrieve" and not record.get("preceding")
    needs = {"Retrieval": True, "No Retrieval": False}.get(_text(record, "label")) if first else None
    return Item(_text(record, "id"), _text(record, "instruction"), needs)


def _answerable(label: str) -> bool:
    if label not in ("answerable", "unanswerable"):
        raise UserError(f"'label' must be answerable or unanswerable, not {label!r}")
    return label == "answerable"


def _passages(record: Mapping[str, Any], key: str, id_key: str) -> tuple[Passage, ...]:
    found = record.get(key)
    if not isinstance(found, list) or not all(isinstance(passage, dict) for passage in found):
        raise UserError(f"{key!r} must be a list of passages")
    return tuple(Passage(_text(p, id_key), _text(p, "text"), str(p.get("title") or "")) for p in found)


def _texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = record.get(key)
    if not isinstance(found, list) or not all(isinstance(value, str) for value in found):
        raise UserError(f"{key!r} must be a list of texts")
    return tuple(found)


def _text(record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        raise UserError(f"key {key!r} is missing")
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{key!r} must be text that is not empty, not {value!r:.60}")
    return value
