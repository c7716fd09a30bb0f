"""List questions with the passages that a search finds for them: the rows of an evaluation file. Makes no question.

Relevant is a passage that states an answer, and a found one that names the things asked about and an answer. As in the
third paper's set, a question stays only if relevant evidence stands among the first few passages.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.passage import Passage, Retriever
from selfrag.evaluation.tasks.listing.questions import ListQuestion

TASK = "list_qa"


@dataclass(frozen=True, slots=True)
class Selection:
    """What becomes a row.

    Attributes:
        passages: found for a question.
        within: a relevant passage must be among so many; 0 keeps every question.
        examples: questions that are set aside as few-shot examples (`split` = train).
        seed: of their choice.
    """

    passages: int = 10
    within: int = 3
    examples: int = 10
    seed: int = 0


def list_rows(
    questions: Sequence[ListQuestion], retriever: Retriever, selection: Selection | None = None
) -> list[dict[str, Any]]:
    """Rows in the schema of `eval` files, with `answers` as lists of names.

    Raises:
        UserError: the retriever cannot search.
    """
    chosen = selection or Selection()
    found = retriever([question.text for question in questions], chosen.passages)
    kept = []
    for question, passages in zip(questions, found, strict=True):
        gold = _gold(question, passages)
        if not chosen.within or any(passage.id in gold for passage in passages[: chosen.within]):
            kept.append((question, passages, gold))
    train = _examples([question for question, _, _ in kept], chosen)
    names = _ids([question for question, _, _ in kept])
    return [
        _row(name, question, passages, gold, "train" if i in train else "dev")
        for i, (name, (question, passages, gold)) in enumerate(zip(names, kept, strict=True))
    ]


def _row(
    name: str, question: ListQuestion, passages: Sequence[Passage], gold: Sequence[str], split: str
) -> dict[str, Any]:
    return {
        "id": name,
        "task": TASK,
        "type": question.type,
        "relations": list(question.relations),
        "split": split,
        "instruction": question.text,
        "question": question.text,
        "answers": [list(answer.names) for answer in question.answers],
        "answer_passage_ids": [list(answer.passages) for answer in question.answers],
        "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in passages],
        "gold_passage_ids": list(gold),
    }


def _gold(question: ListQuestion, passages: Sequence[Passage]) -> list[str]:
    stating = [id_ for answer in question.answers for id_ in answer.passages]
    naming = [p.id for p in passages if _names_all(f"{p.title} {p.text}", question)]
    return list(dict.fromkeys((*stating, *naming)))


def _names_all(text: str, question: ListQuestion) -> bool:
    things = all(_stands_in(thing, text) for thing in question.objects)
    return things and any(_stands_in(name, text) for answer in question.answers for name in answer.names)


def _stands_in(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _examples(questions: Sequence[ListQuestion], selection: Selection) -> frozenset[int]:
    """Simple questions about things that no other question is about, so that an example gives no answer away."""
    asked = Counter(thing for question in questions for thing in question.objects)
    alone = [i for i, question in enumerate(questions) if question.type == "simple" and asked[question.objects[0]] == 1]
    drawn = random.Random(selection.seed).sample(alone, min(selection.examples, len(alone)))  # noqa: S311 - no secret
    return frozenset(drawn)


def _ids(questions: Sequence[ListQuestion]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for question in questions:
        plain = unicodedata.normalize("NFKD", " ".join((*question.relations, *question.objects)))
        name = f"list-{question.type}-" + re.sub(r"[^a-z0-9]+", "-", plain.casefold()).strip("-")
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"
