"""ShareGPT conversations, whole or split into pieces, in the schema of the cleaned public files (one JSON array).

    {"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": ".."}, {"from": "gpt", "value": ".."}]}

Long conversations were cut for training; a piece is named after its conversation and the turn it starts at, so
`.._2` and later ones lack what was said before.
"""

from __future__ import annotations

import re

from critic.pairs import Pair
from critic.sources.fields import identifier, objects, text
from critic.sources.raw import Raw, UnusableError, make_pair, rowwise
from critic.sources.turns import ASSISTANT, USER, exchange
from retrieval.errors import UserError

_ROLES = {"human": USER, "user": USER, "gpt": ASSISTANT, "chatgpt": ASSISTANT, "assistant": ASSISTANT}
_OTHERS = ("system", "bing", "bard")
_LATER_PIECE = re.compile(r".{7,}_0*[1-9]\d*")  # names of conversations have at least 7 characters


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a conversation.

    Raises:
        UserError: the row is malformed, or somebody unknown speaks.
        UnusableError: it is not one question with its answer.
    """
    key = identifier(raw.record, "id", raw.key)
    turns = objects(raw.record, "conversations")
    instruction, output = exchange([(_role(text(turn, "from")), text(turn, "value")) for turn in turns])
    if _LATER_PIECE.fullmatch(key):
        raise UnusableError("a later piece of a conversation")
    return make_pair(f"{dataset}-{key}", dataset, "instruction", instruction, output)


def _role(speaker: str) -> str:
    if speaker not in _ROLES and speaker not in _OTHERS:
        raise UserError(f"unknown speaker {speaker!r:.60}; known: {', '.join((*_ROLES, *_OTHERS))}")
    return _ROLES.get(speaker, speaker)


read = rowwise(parse)
