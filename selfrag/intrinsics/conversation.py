"""Whatever a caller has as a `State`: a question, a list of turns, or an `Answer` of ours. Strict, never mutating.

Refuses what is no conversation at all; which turns and passages make sense is each intrinsic's own matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer
from selfrag.errors import UserError
from selfrag.intrinsics.state import ROLES, Message, State

Conversation: TypeAlias = str | Sequence[Message | Mapping[str, Any]] | Answer | State
"""A plain question, turns oldest first (`{"role": "user", "content": "..."}`), an `Answer`, or a `State`."""

Passages: TypeAlias = Sequence[Passage | Mapping[str, Any] | str]
"""Passages, texts, or objects with `text` and optionally `id` (or `doc_id`) and `title`."""


def read_state(
    conversation: Conversation, passages: Passages | None = None, arguments: Mapping[str, str] | None = None
) -> State:
    """A conversation with passages and arguments, checked.

    Args:
        conversation: see `Conversation`. An `Answer` becomes its question and its text.
        passages: see `Passages`; for an `Answer` the default is what it cites, for a `State` what it has.
        arguments: what a template of the intrinsic asks for.

    Raises:
        UserError: not a conversation, a turn without text or with an unknown role, or a passage without text.
    """
    given = None if passages is None else read_passages(passages)
    if isinstance(conversation, State):
        kept = conversation.passages if given is None else given
        return State(conversation.messages, kept, arguments or conversation.arguments, conversation.extra)
    if isinstance(conversation, Answer):
        if conversation.error is not None:
            raise UserError(f"this answer failed ({conversation.error}); there is nothing to look at")
        turns = (Message("user", conversation.question), Message("assistant", conversation.text))
        return State(turns, conversation.citations if given is None else given, arguments or {})
    return State(_turns(conversation), given or (), arguments or {})


def read_passages(passages: Any) -> tuple[Passage, ...]:
    """Passages in the caller's order; those without an id are numbered from 1.

    Raises:
        UserError: not a list, or one of them has no text; names its number.
    """
    if isinstance(passages, str | Mapping | Passage) or not isinstance(passages, Iterable):
        raise UserError(f"passages must be a list, not one {type(passages).__name__}; write [passage]")
    return tuple(_passage(given, number) for number, given in enumerate(passages, 1))


def _turns(conversation: Any) -> tuple[Message, ...]:
    if isinstance(conversation, str):
        return (Message("user", conversation),)
    if not isinstance(conversation, Iterable) or isinstance(conversation, Mapping):
        raise UserError(
            f"a conversation is a question, a list of turns or an Answer, not {type(conversation).__name__}"
        )
    turns = tuple(_turn(given, number) for number, given in enumerate(conversation, 1))
    if not turns:
        raise UserError("the conversation is empty; give at least one turn")
    return turns


def _turn(given: Any, number: int) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise UserError(
            f'turn {number} must be an object like {{"role": "user", "content": "..."}}, not {type(given).__name__}'
        )
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or not role:
        raise UserError(f"turn {number} has no role; write one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise UserError(f"turn {number} ({role}): content must be text, not {type(content).__name__}")
    return Message(role, content)


def _passage(given: Any, number: int) -> Passage:
    if isinstance(given, Passage):
        return given
    if isinstance(given, str):
        return Passage(str(number), given)
    if not isinstance(given, Mapping):
        raise UserError(f"passage {number} must be a Passage, text or an object, not {type(given).__name__}")
    name = given.get("id", given.get("doc_id", str(number)))
    text, title = given.get("text"), given.get("title", "")
    if not isinstance(text, str):
        raise UserError(f"passage {number} has no text")
    return Passage(str(name), text, title if title is not None else "")
