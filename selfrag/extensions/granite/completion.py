"""`CompletionCodec`: an intrinsic of Granite 3.2 or 3.3, whose prompt the client renders. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from selfrag.extensions.granite.numbering import (
    NumberedState,
    ShownPassage,
    number_sentences,
)
from selfrag.extensions.granite.replies import Binding, BoundCodec, with_scores
from selfrag.interface import (
    Constraint,
    JudgeInput,
    Message,
    ModelRequest,
    PromptPiece,
    SentenceFinder,
    TextPrompt,
    UserError,
)

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """A turn that the dialect puts behind the conversation."""

    role: str  # its role; `{document}` stands for the one document as a turn of its own
    text: str  # its text, with fields
    end: str  # `open` (the model completes the role), `turn`, or `last` (closed, without a new line)

    def fields(self) -> list[str]:
        """Return the names of the fields in the text."""
        return _FIELD.findall(self.text)

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the text with its fields filled in once; braces in values stay text."""
        return _FIELD.sub(lambda match: values[match.group(1)], self.text)


@dataclass(frozen=True, slots=True)
class CompletionSpec:
    """One adapter on the wire."""

    adapter: str | None  # published name; None for the base model
    documents: bool  # whether the passages are shown in front of the conversation
    turns: tuple[PromptTurn, ...]  # behind the conversation
    max_tokens: int  # most new tokens
    # letter of the sentence tags by what carries them
    tags: Mapping[str, str] = field(default_factory=dict)
    constraint: Constraint | None = None  # form of the reply; None for free text


@cache
def completion_specs(dialect: str) -> Mapping[str, CompletionSpec]:
    """Read the intrinsics of `granite-3.2` or `granite-3.3`, by name."""
    text = (
        files(__package__)
        .joinpath("data", f"{dialect}.json")
        .read_text(encoding="utf-8")
    )
    return MappingProxyType(
        {name: _spec(raw) for name, raw in json.loads(text)["intrinsics"].items()}
    )


def _spec(raw: Mapping[str, Any]) -> CompletionSpec:
    constraint = None
    for form, value in raw.get("constraint", {}).items():
        constraint = getattr(Constraint, form)(value)
    return CompletionSpec(
        adapter=raw["adapter"],
        documents=raw["documents"],
        turns=tuple(PromptTurn(**turn) for turn in raw["turns"]),
        max_tokens=raw["max_tokens"],
        tags=MappingProxyType(dict(raw.get("tags", {}))),
        constraint=constraint,
    )


OPEN, CLOSE, END = "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"

_GROUNDED = (
    "Write the response to the user's input by strictly aligning with the facts in the provided documents. If the "
    "information needed to answer the question is not available in the documents, inform the user that the question "
    "cannot be answered based on the available data."
)


class SystemTurn(StrEnum):
    """What stands in the system turn where the conversation brings none."""

    DEFAULT = "default"  # the template's own text, as in all recorded traffic
    EMPTY = "empty"  # a system turn without text
    NONE = "none"  # no system turn


def closed_turn(role: str, text: str, newline: bool = True) -> Iterator[PromptPiece]:
    """Yield a closed turn."""
    yield from opened(role)
    if text:
        yield PromptPiece(text)
    yield PromptPiece(END, control=True)
    if newline:
        yield PromptPiece("\n")


def opened(role: str) -> Iterator[PromptPiece]:
    """Yield a role that the model completes."""
    yield PromptPiece(OPEN, control=True)
    yield PromptPiece(role)
    yield PromptPiece(CLOSE, control=True)


def head(
    date: str, system: SystemTurn, grounded: bool, joined: bool
) -> Iterator[PromptPiece]:
    """Yield the system turn, whose date is given. Granite 3.2 (`joined`) has no space before the text on documents."""
    if system is SystemTurn.NONE:
        return
    about = " You are a helpful AI assistant."
    if grounded:
        about = _GROUNDED if joined else f" {_GROUNDED}"
    text = f"Knowledge Cutoff Date: April 2024.\nToday's Date: {date}.\nYou are Granite, developed by IBM.{about}"
    yield from closed_turn("system", text if system is SystemTurn.DEFAULT else "")


def documents(shown: Sequence[ShownPassage], joined: bool) -> Iterator[PromptPiece]:
    """Yield the documents, blank ones too: all in one turn, numbered, or a turn for each with its id in the role."""
    if joined and shown:
        yield from closed_turn(
            "documents", "\n\n".join(f"Document {d.index}\n{d.text}" for d in shown)
        )
    for document in () if joined else shown:
        name = json.dumps({"document_id": document.id}, ensure_ascii=False)
        yield from closed_turn(f"document {name}", f"\n{document.text}")


def conversation(messages: Iterable[Message]) -> Iterator[PromptPiece]:
    """Yield the turns of the caller."""
    for message in messages:
        yield from closed_turn(message.role, message.content)


DATE = "April 1, 2025"
"""The date in the recorded traffic of both dialects."""


@dataclass(frozen=True)
class CompletionCodec(BoundCodec):
    """One adapter of a completion dialect."""

    dialect: str  # name of the dialect
    spec: CompletionSpec  # the adapter's prompt
    binding: Binding  # what its reply means
    joined: bool  # all documents in one turn (Granite 3.2); else a turn for each (3.3)
    find: SentenceFinder  # sentence splitter; the adapters were trained with `punkt`
    # score a label that stands right behind the prompt as a slot, and ask for log-probabilities of others; False sends
    # the request exactly as published
    exact: bool = True
    # name of the adapter on the server; None for the base model
    adapter: str | None = None
    date: str = DATE  # what the system turn calls today
    # what stands in the system turn where the conversation does not begin with one
    system: SystemTurn = SystemTurn.DEFAULT

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return the request; see `exact`. Several documents where one is asked about are refused."""
        if not state.messages:
            raise UserError(
                f"{self.intrinsic}: the conversation is empty; give at least one turn"
            )
        seen = number_sentences(self.spec.tags, state, self.find)
        request = ModelRequest(
            state,
            TextPrompt(
                tuple(self._pieces(state, seen)),
                "\n".join(f"{turn.role} {turn.text}" for turn in self.spec.turns),
            ),
            max_tokens=self.spec.max_tokens,
            temperature=state.extra.get("temperature", 0.0),
            constraint=self.spec.constraint,
            sites=seen.sites,
            sources=seen.sources,
            adapter=self.adapter,
        )
        return with_scores(self.binding, None, request) if self.exact else request

    def _pieces(self, state: JudgeInput, seen: NumberedState) -> Iterator[PromptPiece]:
        messages = list(seen.messages)
        shown = seen.documents if self.spec.documents else ()
        if messages[0].role == "system":
            yield from conversation(messages[:1])
            messages = messages[1:]
        else:
            yield from head(self.date, self.system, bool(shown), self.joined)
        yield from documents(shown, self.joined)
        yield from conversation(messages)
        for behind in self.spec.turns:
            yield from self._turn(behind, state, seen)

    def _turn(
        self, behind: PromptTurn, state: JudgeInput, seen: NumberedState
    ) -> Iterator[PromptPiece]:
        if behind.role == "{document}":
            yield from documents((seen.only(self.intrinsic),), joined=False)
        elif behind.end == "open":
            yield from opened(behind.role)
        else:
            yield from closed_turn(
                behind.role,
                behind.filled(self._values(behind, state)),
                behind.end == "turn",
            )

    def _values(self, behind: PromptTurn, state: JudgeInput) -> dict[str, str]:
        values = {"query": state.query or state.messages[-1].content, **state.arguments}
        for name in behind.fields():
            if name not in values:
                raise UserError(f"{self.intrinsic} needs the argument {name!r}")
        return values
