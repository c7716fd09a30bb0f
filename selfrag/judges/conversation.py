"""What a caller gives as a conversation and as passages, read into a `JudgeInput`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.reading import read_json
from selfrag.decoding.answer import Answer
from selfrag.reflection.inputs import ROLES, JudgeInput, Message

Conversation: TypeAlias = (
    str | Sequence[Message | Mapping[str, Any]] | Answer | JudgeInput
)
"""A plain question, turns oldest first (`{"role": "user", "content": "..."}`), an `Answer`, or a `JudgeInput`."""

Passages: TypeAlias = Sequence[Passage | Mapping[str, Any] | str]
"""Passages, texts, or objects with `text` and optionally `id` (or `doc_id`) and `title`."""


def read_input(
    conversation: Conversation,
    passages: Passages | None = None,
    arguments: Mapping[str, str] | None = None,
) -> JudgeInput:
    """Return a conversation, its own passages or `passages`, and arguments, checked.

    An `Answer` brings what it cites.
    """
    if isinstance(conversation, JudgeInput):
        state = replace(conversation, arguments=arguments or conversation.arguments)
    elif isinstance(conversation, Answer):
        if conversation.error is not None:
            raise UserError(
                f"this answer failed ({conversation.error}); there is nothing to look at"
            )
        turns = (
            Message("user", conversation.question),
            Message("assistant", conversation.text),
        )
        state = JudgeInput(
            turns,
            conversation.citations,
            arguments or {},
            path_score=conversation.path_score,
        )
    else:
        state = JudgeInput(_turns(conversation), (), arguments or {})
    return (
        state if passages is None else replace(state, passages=read_passages(passages))
    )


def read_passages(passages: Any) -> tuple[Passage, ...]:
    """Read passages in the caller's order; number those without an id from 1, and refuse one without text."""
    if isinstance(passages, str | Mapping | Passage) or not isinstance(
        passages, Iterable
    ):
        raise UserError(
            f"passages must be a list, not one {type(passages).__name__}; write [passage]"
        )
    return tuple(
        _passage(passage, number) for number, passage in enumerate(passages, 1)
    )


def _turns(conversation: Any) -> tuple[Message, ...]:
    if isinstance(conversation, str):
        return (Message("user", conversation),)
    if not isinstance(conversation, Iterable) or isinstance(conversation, Mapping):
        raise UserError(
            f"a conversation is a question, a list of turns or an Answer, not {type(conversation).__name__}"
        )
    turns = []
    for number, value in enumerate(conversation, 1):
        turn = _turn(value, number)
        if turn is not None:
            turns.append(turn)
    if not turns:
        raise UserError("the conversation is empty; give at least one turn")
    return tuple(turns)


def _turn(turn: Any, number: int) -> Message | None:
    """Return a turn; None where an assistant said nothing, as one that only calls a tool."""
    if isinstance(turn, Message):
        return turn
    if not isinstance(turn, Mapping):
        raise UserError(
            f'turn {number} must be an object like {{"role": "user", "content": "..."}}, not {type(turn).__name__}'
        )
    role = turn.get("role")
    content = turn.get("content")
    if not isinstance(role, str) or not role:
        raise UserError(f"turn {number} has no role; write one of {', '.join(ROLES)}")
    if role == "assistant" and content is None:
        content = turn.get("refusal")
        if content is None:
            return None
    text = content_text(content, f"turn {number} ({role})")
    return Message("tool" if role == "function" else role, text)


TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that hold text."""


def content_text(content: Any, where: str) -> str:
    """Return the text of a message: of its content, or of the parts of it, one a line.

    Args:
        content: text, or a list of texts and of parts such as `{"type": "text", "text": ".."}`.
        where: the message, for errors.

    Raises:
        UserError: a part is no text, such as an image.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where}: content must be text, not {type(content).__name__}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        text: Any = None
        if isinstance(part, str):
            text = part
        elif isinstance(part, Mapping) and kind in TEXT_PARTS:
            text = part.get("text")
        elif isinstance(part, Mapping) and kind == "refusal":
            text = part.get("refusal")
        if not isinstance(text, str):
            raise UserError(
                f"{where}: a part of type {kind!r:.60}, and this model reads text only; leave it out"
            )
        texts.append(text)
    return "\n".join(texts)


def _passage(passage: Any, number: int) -> Passage:
    if isinstance(passage, Passage):
        return passage
    if isinstance(passage, str):
        return Passage(str(number), passage)
    if not isinstance(passage, Mapping):
        raise UserError(
            f"passage {number} must be a Passage, text or an object, not {type(passage).__name__}"
        )
    name = passage.get("id", passage.get("doc_id", str(number)))
    text = passage.get("text")
    title = passage.get("title")
    if not isinstance(text, str):
        raise UserError(f"passage {number} has no text")
    return Passage(str(name), text, "" if title is None else title)


def same_question(first: str, second: str) -> bool:
    """Return whether two questions are equal but for spacing and case."""
    return first.casefold().split() == second.casefold().split()


def search_query(question: str, rewrite: str) -> str:
    """Return what is searched for: the question with its rewrite after it, once where they are equal.

    A rewrite may lose a word of the question; then the search still has it.
    """
    return question if same_question(question, rewrite) else f"{question} {rewrite}"


def read_conversation(path: Path) -> tuple[tuple[Message, ...], tuple[Passage, ...]]:
    """Read the turns and passages of a JSON file.

    It holds a list of turns, or an object with `messages` (or `conversation`) and perhaps `documents` (or `passages`).
    """
    turns = read_json(path)
    passages = None
    if isinstance(turns, Mapping):
        passages = turns.get("documents", turns.get("passages"))
        turns = turns.get("messages", turns.get("conversation"))
    if not isinstance(turns, list):
        raise UserError(
            f'{path}: no conversation; write [{{"role": "user", "content": "..."}}]'
        )
    try:
        return read_input(turns).messages, read_passages(passages or ())
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
