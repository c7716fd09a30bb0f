"""What an intrinsic looks at: a conversation, passages, arguments; and `Site`, a place in their original strings.

Which order of roles makes sense is each intrinsic's matter; that they are roles is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.reading import read_json
from selfrag.common.untrusted import whole
from selfrag.decoding.answer import Answer

ROLES = ("user", "assistant", "system", "developer", "tool")
"""Who speaks in a conversation. A chat template compares roles and prints them, so nobody can make one up."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: str  # one of `ROLES`; in a prompt also a document of a dialect that shows documents as turns, `document 7`
    content: str  # untrusted; nothing in it can become a control token or a sentence tag


class Scope(StrEnum):
    """What a site is a piece of."""

    TURN = "turn"
    QUERY = "query"  # the last user turn
    RESPONSE = "response"  # the last assistant turn
    SENTENCE = "sentence"  # of the response
    PASSAGE = "passage"
    SOURCE = "source"  # a sentence of a passage, or of an earlier turn


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the caller's own text: `original[begin:end] == text`, always.

    Exactly one of `message` and `passage` is given.
    """

    scope: Scope  # what kind of piece
    begin: int  # character offset into the original string
    end: int  # character offset, exclusive
    text: str  # that slice
    message: int | None = None  # index into `State.messages`
    passage: int | None = None  # index into `State.passages`

    def __post_init__(self) -> None:
        if (self.message is None) == (self.passage is None):
            raise ValueError("a site is in a message or in a passage")
        if self.end - self.begin != len(self.text) or self.begin < 0:
            raise ValueError(f"site {self.begin}:{self.end} does not hold {len(self.text)} characters")

    def as_dict(self) -> dict[str, Any]:
        """Offsets and text, ready for JSON."""
        return {"begin": self.begin, "end": self.end, "text": self.text}

    def __str__(self) -> str:
        where = f"message {self.message}" if self.passage is None else f"passage {self.passage}"
        return f"{self.scope} {self.begin}:{self.end} of {where}"


@dataclass(frozen=True, slots=True)
class State:
    """The input of an intrinsic; never mutated. Lone surrogates in any of its texts are replaced by U+FFFD."""

    # the conversation, oldest first. A role that is none of `ROLES` raises a `UserError`.
    messages: tuple[Message, ...]
    passages: tuple[Passage, ...] = ()  # in the caller's order; empty ones keep their place
    # what a template of the intrinsic asks for, such as `requirement`
    arguments: Mapping[str, str] = field(default_factory=dict)
    # fields of the caller's chat request that a dialect passes on, such as `temperature`
    extra: Mapping[str, Any] = field(default_factory=dict)
    # the answer that the conversation ends with, where this library wrote it; nothing is shown of it
    answer: Answer | None = None

    def __post_init__(self) -> None:
        for number, message in enumerate(self.messages, 1):
            if message.role not in ROLES:
                raise UserError(f"turn {number}: role {message.role!r:.60} is none of {', '.join(ROLES)}")
        for name in ("messages", "passages"):
            object.__setattr__(self, name, tuple(map(_whole, getattr(self, name))))
        object.__setattr__(self, "arguments", MappingProxyType(_whole(dict(self.arguments))))
        object.__setattr__(self, "extra", MappingProxyType(_whole(dict(self.extra))))

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.messages, self.passages, dict(self.arguments), dict(self.extra), self.answer)

    def last(self, role: str) -> int | None:
        """Index of the last message with this role."""
        return next((i for i in reversed(range(len(self.messages))) if self.messages[i].role == role), None)

    @property
    def query(self) -> str | None:
        """Content of the last user message."""
        index = self.last("user")
        return None if index is None else self.messages[index].content

    @property
    def response(self) -> str | None:
        """Content of the last assistant message."""
        index = self.last("assistant")
        return None if index is None else self.messages[index].content

    def in_message(self, scope: Scope, index: int, begin: int = 0, end: int | None = None) -> Site:
        """A site in message `index`; the whole message without offsets."""
        content = self.messages[index].content
        end = len(content) if end is None else end
        return Site(scope, begin, end, content[begin:end], message=index)

    def in_passage(self, scope: Scope, index: int, begin: int = 0, end: int | None = None) -> Site:
        """A site in passage `index`; the whole passage without offsets."""
        text = self.passages[index].text
        end = len(text) if end is None else end
        return Site(scope, begin, end, text[begin:end], passage=index)

    def original(self, site: Site) -> str:
        """The message or passage that a site lies in; empty where there is none."""
        if site.passage is not None:
            return self.passages[site.passage].text if site.passage < len(self.passages) else ""
        index = site.message or 0
        return self.messages[index].content if index < len(self.messages) else ""

    def holds(self, site: Site) -> bool:
        """Whether the site's text is what this state has there."""
        return self.original(site)[site.begin : site.end] == site.text


def _whole(value: Any) -> Any:
    """A value with every text in it `whole`; the value itself where nothing is to be changed."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Message):
        content = whole(value.content)
        return value if content is value.content else replace(value, content=content)
    if isinstance(value, Passage):
        given = (value.id, value.text, value.title)
        made = tuple(map(whole, given))
        return value if made == given else replace(value, id=made[0], text=made[1], title=made[2])
    if isinstance(value, Mapping):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list | tuple) else value


Conversation: TypeAlias = str | Sequence[Message | Mapping[str, Any]] | Answer | State
"""A plain question, turns oldest first (`{"role": "user", "content": "..."}`), an `Answer`, or a `State`."""

Passages: TypeAlias = Sequence[Passage | Mapping[str, Any] | str]
"""Passages, texts, or objects with `text` and optionally `id` (or `doc_id`) and `title`."""


def read_state(
    conversation: Conversation, passages: Passages | None = None, arguments: Mapping[str, str] | None = None
) -> State:
    """A conversation, its own passages or those given, and arguments, checked; an `Answer` brings what it cites."""
    given = None if passages is None else read_passages(passages)
    if isinstance(conversation, State):
        kept = conversation.passages if given is None else given
        return replace(conversation, passages=kept, arguments=arguments or conversation.arguments)
    if isinstance(conversation, Answer):
        if conversation.error is not None:
            raise UserError(f"this answer failed ({conversation.error}); there is nothing to look at")
        turns = (Message("user", conversation.question), Message("assistant", conversation.text))
        kept = conversation.citations if given is None else given
        return State(turns, kept, arguments or {}, answer=conversation)
    return State(_turns(conversation), given or (), arguments or {})


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
        return read_state(given).messages, read_passages(passages)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _one_of(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if name in given), None)
