"""Wizard of Wikipedia from KILT: the dialogue so far, a line a turn, and the wizard's next turn."""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.instructions import CHAT_HISTORY, asked
from critic.sources.kilt import example
from critic.sources.raw import Raw, UnusableError, make_pair, rowwise


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a turn; see `critic.sources.kilt` for the schemas and errors."""
    row = example(raw)
    if not row.question.strip():
        raise UnusableError("no instruction")
    instruction = asked(CHAT_HISTORY, row.question)
    return make_pair(f"{dataset}-{row.key}", dataset, "dialogue", instruction, row.answer, row.passages)


read = rowwise(parse)
