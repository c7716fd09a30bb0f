"""Texts as atomic facts: each sentence as one, or split further by a prompted model. Knows no verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retrieval.splitting import SentenceFinder, sentences
from selfrag.evaluation.metrics.alce_text import without_marks
from selfrag.intrinsics.chat.transcript import one_line
from selfrag.intrinsics.contract import ChatPrompt, Completion, Executor, Message, Request, State
from selfrag.intrinsics.sentences import rules

TASK = (
    "Break the following sentence down into independent facts. Write each fact as a short sentence that can be"
    " understood alone, on a line of its own that begins with '- ', and write nothing else."
)
_BULLET = re.compile(r"\s*(?:[-*\u2022]|\d{1,3}[.)])\s+(\S.*)")
LONGEST = 400
"""Tokens of the facts of one sentence."""


class Splitter(Protocol):
    """Finds the facts of texts."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides what it finds, as plain values."""
        ...

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Facts of each text, none for an empty one; None where they could not be found."""
        ...


@dataclass(frozen=True)
class SentenceSplitter:
    """Every sentence is a fact: no model is needed, and a sentence with one wrong detail is wrong as a whole."""

    find: SentenceFinder = rules

    @property
    def name(self) -> str:
        """What reports call it."""
        return "sentences"

    def identity(self) -> Mapping[str, Any]:
        """The kind alone."""
        return {"kind": "sentences"}

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Sentences of each text."""
        return [tuple(_sentences(text, self.find)) for text in texts]


@dataclass(frozen=True)
class PromptedSplitter:
    """A chat model asked for the facts of each sentence, as the official tool asks InstructGPT.

    Attributes:
        executor: runs the model.
        name: what reports call it.
        about: what decides the model's answers: model, engine or address.
    """

    executor: Executor
    name: str
    about: Mapping[str, Any]
    find: SentenceFinder = rules

    def identity(self) -> Mapping[str, Any]:
        """Kind, model and prompt."""
        return {"kind": "prompted", **self.about, "task": TASK}

    def split(self, texts: Sequence[str]) -> list[tuple[str, ...] | None]:
        """Facts of all sentences of each text; None where a request failed or a reply had no list."""
        lines = [_sentences(text, self.find) for text in texts]
        results = iter(self.executor.run([_request(line) for own in lines for line in own]))
        found: list[tuple[str, ...] | None] = []
        for own in lines:
            replies = [next(results) for _ in own]
            facts = [read_facts(reply.text) if isinstance(reply, Completion) else () for reply in replies]
            found.append(tuple(fact for some in facts for fact in some) if all(facts) else None)
        return found


def read_facts(text: str) -> tuple[str, ...]:
    """Lines of a reply that are items of a list; other lines are talk around it."""
    matches = (_BULLET.fullmatch(line.rstrip()) for line in text.splitlines())
    return tuple(match[1] for match in matches if match)


def _request(sentence: str) -> Request:
    message = Message("user", f"{TASK}\n\nSentence: {one_line(sentence)}")
    return Request(State((Message("assistant", sentence),)), ChatPrompt((message,)), max_tokens=LONGEST)


def _sentences(text: str, find: SentenceFinder) -> list[str]:
    said = without_marks(text)
    return [said[start:end] for start, end in sentences(said, find)]
