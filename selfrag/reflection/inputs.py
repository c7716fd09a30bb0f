"""`JudgeInput`: what a judge looks at, and `Site`, a place in the caller's own text. Pure values.

Which order of roles makes sense is a matter of each judge; that they are roles is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError, count_of
from selfrag.common.untrusted import replace_surrogates

ROLES = ("user", "assistant", "system", "developer", "tool")
"""Who speaks in a conversation. A chat template compares roles and prints them, so nobody can make one up."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: str  # one of `ROLES`; in a prompt also a document of a dialect that shows documents as turns, `document 7`
    # untrusted; nothing in it can become a control token or a sentence tag
    content: str


class SiteKind(StrEnum):
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

    scope: SiteKind  # what kind of piece
    begin: int  # character offset into the original string
    end: int  # character offset, exclusive
    text: str  # that slice
    message: int | None = None  # index into `JudgeInput.messages`
    passage: int | None = None  # index into `JudgeInput.passages`

    def __post_init__(self) -> None:
        if (self.message is None) == (self.passage is None):
            raise ValueError("a site is in a message or in a passage")
        if self.end - self.begin != len(self.text) or self.begin < 0:
            raise ValueError(
                f"site {self.begin}:{self.end} does not hold {count_of(len(self.text), 'characters')}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return offsets and text, ready for JSON."""
        return {"begin": self.begin, "end": self.end, "text": self.text}

    def __str__(self) -> str:
        where = (
            f"message {self.message}"
            if self.passage is None
            else f"passage {self.passage}"
        )
        return f"{self.scope} {self.begin}:{self.end} of {where}"


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """What is judged: a conversation, passages, and where there is one the text under judgment.

    The text under judgment is the last turn if the assistant wrote it. Never mutated. Lone surrogates in any of the
    texts are replaced by U+FFFD.
    """

    # the conversation, oldest first. A role that is none of `ROLES` raises a `UserError`.
    messages: tuple[Message, ...]
    passages: tuple[
        Passage, ...
    ] = ()  # in the caller's order; empty ones keep their place
    # what a template asks for, such as `requirement`
    arguments: Mapping[str, str] = field(default_factory=dict)
    # fields of the caller's chat request that a dialect passes on, such as `temperature`
    extra: Mapping[str, Any] = field(default_factory=dict)
    begin: int = 0  # where the text under judgment begins in the last turn; what stands before it is context
    # score of the path that the decoder took to the answer that is the last turn; None for any other text
    path_score: float | None = None

    def __post_init__(self) -> None:
        for number, message in enumerate(self.messages, 1):
            if message.role not in ROLES:
                raise UserError(
                    f"turn {number}: role {message.role!r:.60} is none of {', '.join(ROLES)}"
                )
        for name in ("messages", "passages"):
            object.__setattr__(self, name, tuple(map(_readable, getattr(self, name))))
        for name in ("arguments", "extra"):
            object.__setattr__(
                self, name, MappingProxyType(_readable(dict(getattr(self, name))))
            )

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = dict(self.arguments)
        extra = dict(self.extra)
        return JudgeInput, (
            self.messages,
            self.passages,
            arguments,
            extra,
            self.begin,
            self.path_score,
        )

    def last(self, role: str) -> int | None:
        """Return the index of the last message with this role."""
        return next(
            (
                i
                for i in reversed(range(len(self.messages)))
                if self.messages[i].role == role
            ),
            None,
        )

    @property
    def query(self) -> str | None:
        """Return the content of the last user message."""
        index = self.last("user")
        return None if index is None else self.messages[index].content

    @property
    def response(self) -> str | None:
        """Return the content of the last assistant message."""
        index = self.last("assistant")
        return None if index is None else self.messages[index].content

    @property
    def before(self) -> str:
        """Return the part of the last turn before the text under judgment."""
        return self.messages[-1].content[: self.begin]

    @property
    def text(self) -> str:
        """Return the text under judgment; empty where the last turn is not the assistant's."""
        last = self.messages[-1]
        return last.content[self.begin :] if last.role == "assistant" else ""

    @property
    def filled(self) -> list[int]:
        """Return the indices of the passages that have text."""
        return [
            index for index, passage in enumerate(self.passages) if passage.text.strip()
        ]

    def without_context(self) -> JudgeInput:
        """Return the input without what stands in the last turn before the text under judgment."""
        if self.begin == 0:
            return self
        return replace(
            self,
            messages=(*self.messages[:-1], Message("assistant", self.text)),
            begin=0,
        )

    def in_message(
        self, scope: SiteKind, index: int, begin: int = 0, end: int | None = None
    ) -> Site:
        """Return a site in message `index`; the whole message without offsets."""
        content = self.messages[index].content
        if end is None:
            end = len(content)
        return Site(scope, begin, end, content[begin:end], message=index)

    def in_passage(
        self, scope: SiteKind, index: int, begin: int = 0, end: int | None = None
    ) -> Site:
        """Return a site in passage `index`; the whole passage without offsets."""
        text = self.passages[index].text
        if end is None:
            end = len(text)
        return Site(scope, begin, end, text[begin:end], passage=index)

    def original(self, site: Site) -> str:
        """Return the message or passage that a site lies in; empty where there is none."""
        if site.passage is not None:
            return (
                self.passages[site.passage].text
                if site.passage < len(self.passages)
                else ""
            )
        index = site.message or 0
        return self.messages[index].content if index < len(self.messages) else ""

    def holds(self, site: Site) -> bool:
        """Return whether the site's text is what this input has there."""
        return self.original(site)[site.begin : site.end] == site.text


def _readable(value: Any) -> Any:
    """Return a value with every lone surrogate in its texts replaced; a passage has none."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Message):
        content = replace_surrogates(value.content)
        return value if content is value.content else replace(value, content=content)
    if isinstance(value, Mapping):
        return {_readable(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_readable, value))
    return value
