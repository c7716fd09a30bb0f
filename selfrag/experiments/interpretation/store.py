"""The questions of a run on disk, so that later tests ask about the very same ones. Knows no model and no cell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import writing
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.experiments.interpretation.questions import Chosen, Relevance, relevant
from selfrag.experiments.interpretation.trials import Showing
from selfrag.jsonl import read_jsonl, write_jsonl

FILE = "questions.jsonl"
ASKED, EXAMPLE = "asked", "example"


@dataclass(frozen=True, slots=True)
class Questions:
    """What a run asks, and how it shows and judges passages.

    Attributes:
        chosen: questions and demonstrations.
        kinds: item id to its type of question.
        showing: how passages are shown.
        relevance: what makes a passage relevant.
    """

    chosen: Chosen
    kinds: Mapping[str, str]
    showing: Showing
    relevance: Relevance

    @property
    def by_id(self) -> dict[str, Item]:
        """The questions by their ids."""
        return {item.id: item for item in self.chosen.items}

    def relevant(self, item: Item, passages: tuple[Passage, ...]) -> frozenset[str]:
        """Ids of the relevant passages among those shown."""
        return relevant(item, passages, self.relevance)

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, one object a question, the demonstrations last."""
        asked = [_row(item, ASKED, self.kinds) for item in self.chosen.items]
        return asked + [_row(item, EXAMPLE, self.kinds) for item in self.chosen.demonstrations]

    def identity(self) -> dict[str, Any]:
        """What decides every record, for the manifest."""
        text = json.dumps(self.rows(), sort_keys=True, ensure_ascii=True)
        return {
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "asked": len(self.chosen.items),
            "answerable": self.chosen.answerable,
            "relevance": self.relevance,
            **self.showing.as_dict(),
        }

    def write(self, folder: Path) -> None:
        """Write them into a run directory, where they are not there yet."""
        path = folder / FILE
        if not path.exists():
            with writing(path):
                write_jsonl(path, self.rows())


def read_questions(folder: Path, identity: Mapping[str, Any]) -> Questions:
    """The questions of a run.

    Args:
        folder: of the run.
        identity: what `Questions.identity` said when it was started.

    Raises:
        UserError: they are missing or were changed.
    """
    path = folder / FILE
    rows = list(read_jsonl(path, lambda row: row))
    try:
        items = {role: tuple(_item(row) for row in rows if row["role"] == role) for role in (ASKED, EXAMPLE)}
        showing = Showing(identity["seed"], identity["example_contexts"], identity["words"])
        kinds = {row["id"]: row["kind"] for row in rows}
        chosen = Chosen(items[ASKED], items[EXAMPLE], identity["answerable"])
        found = Questions(chosen, kinds, showing, identity["relevance"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not the questions of a run ({error}); start it again in another directory") from error
    if found.identity() != dict(identity):
        raise UserError(f"{path} was changed since the run was started; put it back, or start again elsewhere")
    return found


def _row(item: Item, role: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": item.id,
        "role": role,
        "kind": kinds[item.id],
        "instruction": item.instruction,
        "query": item.query,
        "answer_sets": [list(aliases) for aliases in item.answer_sets],
        "answers": list(item.answers or ()),
        "gold": None if item.gold is None else sorted(item.gold),
        "passages": [passage.as_dict() for passage in item.passages],
    }


def _item(row: Mapping[str, Any]) -> Item:
    return Item(
        row["id"],
        row["instruction"],
        needs_retrieval=None,
        passages=tuple(Passage(p["id"], p["text"], p["title"], p["score"]) for p in row["passages"]),
        gold=None if row["gold"] is None else frozenset(row["gold"]),
        answers=tuple(row["answers"]) or None,
        query=row["query"],
        answer_sets=tuple(tuple(aliases) for aliases in row["answer_sets"]),
    )
