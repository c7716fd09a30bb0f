"""What rows say beside the question: its type, and whether it is set aside as an example. Pure but for reading."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.evaluation.items import Item
from selfrag.jsonl import read_jsonl

KEYS = ("type", "question_type")
SET_ASIDE = "train"
OTHER = "other"
_IN_ID = re.compile(r"\w(?:(?!__)\w)*+__(\w+?)__(?:train|dev|test)")
"""QAMPARI's ids, such as `799__wikidata_simple__dev`, name the type of the question."""
_WORDS = ("who", "whom", "whose", "which", "what", "when", "where", "why", "how")
_FORM = re.compile(rf"\b(how (?:many|much|long|old|often)|{'|'.join(_WORDS)})\b")


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What one row says.

    Attributes:
        kind: type of the question; None where the row names none.
        set_aside: `split` is `train`: the question serves as an example and is not asked.
    """

    kind: str | None = None
    set_aside: bool = False


def read_facts(path: Path) -> dict[str, RowFacts]:
    """Item id to what its row says.

    Raises:
        UserError: the file cannot be read.
    """
    return dict(read_jsonl(path, lambda row: (str(row.get("id")), _facts(row))))


def kinds_of(items: Iterable[Item], facts: dict[str, RowFacts]) -> dict[str, str]:
    """Item id to type: what the row or its id says, else how the question asks."""

    def kind(item: Item) -> str:
        own = facts.get(item.id, RowFacts()).kind or _in_id(item.id)
        return own or asked_how(item.query or item.instruction)

    return {one.id: kind(one) for one in items}


def _in_id(item_id: str) -> str | None:
    found = _IN_ID.fullmatch(item_id)
    return None if found is None else found[1]


def asked_how(question: str) -> str:
    """The first interrogative of a question, such as `who` or `how many`; `other` where there is none."""
    found = _FORM.search(question.lower())
    return OTHER if found is None else found[1]


def _facts(row: dict[str, Any]) -> RowFacts:
    kind = next((row[key] for key in KEYS if isinstance(row.get(key), str) and row[key].strip()), None)
    return RowFacts(kind, row.get("split") == SET_ASIDE)
