"""Rows of KILT, in its own schema and in that of the retrieval training files (DPR) made from it. Knows no task.

    {"id": "..", "input": "..", "output": [{"answer": "..", "provenance": [{"wikipedia_id": "..", "title": ".."}]}]}
    {"question": "..", "answers": [".."], "positive_ctxs": [{"title": "..", "text": "..", "passage_id": ".."}], ..}

KILT names its evidence by page and paragraph, so it brings no passages; the DPR files do.
"""

from __future__ import annotations

from dataclasses import dataclass

from critic.sources.fields import identifier, objects, text, texts
from critic.sources.raw import Raw, UnusableError
from retrieval.passage import Passage


@dataclass(frozen=True, slots=True)
class Example:
    """What both schemas have: the row's id, its question, its first answer, and passages that hold it."""

    key: str
    question: str
    answer: str
    passages: tuple[Passage, ...] = ()


def example(raw: Raw) -> Example:
    """The example of a row; where there are several answers the first counts.

    Raises:
        UserError: the row is malformed; the published test rows have no answers and are refused.
        UnusableError: no answer has text.
    """
    record = raw.record
    if "question" in record:
        passages = tuple(
            Passage(identifier(p, "passage_id", f"{raw.key}/p{n}"), text(p, "text"), text(p, "title", ""))
            for n, p in enumerate(objects(record, "positive_ctxs"), 1)
            if text(p, "text").strip()
        )
        return Example(raw.key, text(record, "question"), _first(texts(record, "answers")), passages)
    answers = [text(output, "answer", "") for output in objects(record, "output")]
    return Example(identifier(record, "id"), text(record, "input"), _first(answers))


def _first(answers: list[str]) -> str:
    answer = next((answer for answer in answers if answer.strip()), None)
    if answer is None:
        raise UnusableError("no output")
    return answer
