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

Conversation: TypeAlias = str | Sequence[Message | Mapping[str, Any]] | Answer | JudgeInput
"""A plain question, turns oldest first (`{"role": "user", "content": "..."}`), an `Answer`, or a `JudgeInput`."""

Passages: TypeAlias = Sequence[Passage | Mapping[str, Any] | str]
"""Passages, texts, or objects with `text` and optionally `id` (or `doc_id`) and `title`."""


def read_input(
    conversation: Conversation, passages: Passages | None = None, arguments: Mapping[str, str] | None = None
) -> JudgeInput:
    """A conversation, its own passages or those given, and arguments, checked; an `Answer` brings what it cites."""
    given = None if passages is None else read_passages(passages)
    if isinstance(conversation, JudgeInput):
        kept = conversation.passages if given is None else given
        return replace(conversation, passages=kept, arguments=arguments or conversation.arguments)
    if isinstance(conversation, Answer):
        if conversation.error is not None:
            raise UserError(f"this answer failed ({conversation.error}); there is nothing to look at")
        turns = (Message("user", conversation.question), Message("assistant", conversation.text))
        kept = conversation.citations if given is None else given
        return JudgeInput(turns, kept, arguments or {}, path_score=conversation.path_score)
    return JudgeInput(_turns(conversation), given or (), arguments or {})


def read_passages(passages: Any) -> tuple[Passage, ...]:
    """Passages in the caller's order; those without an id are numbered from 1, and one without text is named."""
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
    read = [_turn(given, number) for number, given in enumerate(conversation, 1)]
    turns = tuple(turn for turn in read if turn is not None)
    if not turns:
        raise UserError("the conversation is empty; give at least one turn")
    return turns


def _turn(given: Any, number: int) -> Message | None:
    """Return a turn; None where an assistant said nothing, as one that only calls a tool."""
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise UserError(
            f'turn {number} must be an object like {{"role": "user", "content": "..."}}, not {type(given).__name__}'
        )
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or not role:
        raise UserError(f"turn {number} has no role; write one of {', '.join(ROLES)}")
    if role == "assistant" and content is None:
        content = given.get("refusal")
        if content is None:
            return None
    return Message("tool" if role == "function" else role, content_text(content, f"turn {number} ({role})"))


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
            raise UserError(f"{where}: a part of type {kind!r:.60}, and this model reads text only; leave it out")
        texts.append(text)
    return "\n".join(texts)


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


def same_question(first: str, second: str) -> bool:
    """Whether two questions are equal but for spacing and case."""
    return first.casefold().split() == second.casefold().split()


def search_query(asked: str, rewrite: str) -> str:
    """What is searched for: the question as asked with its rewrite after it, once where they are equal.

    A rewrite may lose a word of the question; then the search still has it.
    """
    return asked if same_question(asked, rewrite) else f"{asked} {rewrite}"


def read_conversation(path: Path) -> tuple[tuple[Message, ...], tuple[Passage, ...]]:
    """Turns and passages of a JSON file.

    It holds a list of turns, or an object with `messages` (or `conversation`) and perhaps `documents` (or `passages`).
    """
    given = read_json(path)
    passages: Any = ()
    if isinstance(given, Mapping):
        passages = _one_of(given, "documents", "passages") or ()
        given = _one_of(given, "messages", "conversation")
    if not isinstance(given, list):
        raise UserError(f'{path}: no conversation; write [{{"role": "user", "content": "..."}}]')
    try:
        return read_input(given).messages, read_passages(passages)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _one_of(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if name in given), None)
