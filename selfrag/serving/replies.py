"""Replies of the chat and the responses routes, whole and streamed. Pure: pieces of an answer in, JSON values out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.serving.citations import (
    Piece,
    Writer,
    nested,
    search_result,
    selfrag_object,
    source_event,
)
from selfrag.serving.settings import CitationStyle

Event = Mapping[str, Any]
"""The data of one server-sent event; a `type` in it is also the name of the event."""


@dataclass
class _ReplyBase:
    model: str  # name of the model
    style: CitationStyle  # how the text cites
    # the state of the index that is searched
    index: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.created, self._writer = int(time.time()), Writer(self.style)


@dataclass
class ChatReply(_ReplyBase):
    """A chat completion."""

    events: bool = False  # whether sources are also sent as Open WebUI's events
    include_usage: bool = False  # whether the last chunk of a stream tells the cost
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")

    def start(self) -> Iterator[Event]:
        """Yield the chunk with the role."""
        yield self._chunk({"role": "assistant", "content": ""})

    def segment(self, segment: Segment) -> Iterator[Event]:
        """Yield new sources, then the text with its new annotations."""
        yield from self._pieces([self._writer.add(segment)])

    def finish(self, answer: Answer, name: str | None) -> Iterator[Event]:
        """Yield what was not sent yet, the end with everything about the answer, and the cost."""
        yield from self._pieces(self._writer.rest(answer))
        yield self._chunk({}, answer.finish) | self._further(answer, name)
        if self.include_usage:
            yield self._chunk({}) | {"choices": [], "usage": _usage(answer.usage)}

    def whole(self, answer: Answer, name: str | None) -> dict[str, Any]:
        """Return the completion."""
        self._writer.rest(answer)
        annotations = list(map(nested, self._writer.annotations))
        message = {
            "role": "assistant",
            "content": self._writer.text,
            "refusal": None,
            "annotations": annotations,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": answer.finish,
        }
        head = self._head("chat.completion") | {
            "choices": [choice],
            "usage": _usage(answer.usage),
        }
        return head | self._further(answer, name)

    def _pieces(self, pieces: list[Piece]) -> Iterator[Event]:
        for piece in pieces:
            if self.events:
                for passage in piece.sources:
                    event = {"event": source_event(passage)}
                    yield self._chunk({"content": ""}) | event
            delta: dict[str, Any] = {"content": piece.text}
            if piece.annotations:
                delta["annotations"] = list(map(nested, piece.annotations))
            chunk = self._chunk(delta)
            if piece.described:
                chunk["selfrag"] = {"segment": piece.described}
            yield chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _chunk(
        self, delta: Mapping[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._head("chat.completion.chunk") | {"choices": [choice]}

    def _further(self, answer: Answer, name: str | None) -> dict[str, Any]:
        results = list(map(search_result, self._writer.sources))
        return {
            "citations": [result["url"] for result in results],
            "search_results": results,
            "selfrag": selfrag_object(answer, self._writer, name, self.index),
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


@dataclass
class ResponsesReply(_ReplyBase):
    """A response of the Responses API."""

    instructions: str | None = None
    id: str = field(default_factory=lambda: f"resp_{uuid4().hex}")
    _sent: int = 0
    _item: str = field(default_factory=lambda: f"msg_{uuid4().hex}")

    def start(self) -> Iterator[Event]:
        """Yield the empty response and its empty message."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event(
            "response.in_progress", response=self._response("in_progress")
        )
        yield self._event(
            "response.output_item.added",
            output_index=0,
            item=self._message("in_progress", written=False),
        )
        yield self._of_part(
            "response.content_part.added", part=self._part(written=False)
        )

    def segment(self, segment: Segment) -> Iterator[Event]:
        """Yield the text, then its annotations."""
        yield from self._pieces(
            len(self._writer.annotations), [self._writer.add(segment)]
        )

    def finish(self, answer: Answer, name: str | None) -> Iterator[Event]:
        """Yield what was not sent yet, and the end of part, message and response."""
        yield from self._pieces(
            len(self._writer.annotations), self._writer.rest(answer)
        )
        yield self._of_part(
            "response.output_text.done", text=self._writer.text, logprobs=[]
        )
        yield self._of_part("response.content_part.done", part=self._part())
        status = _status(answer)
        yield self._event(
            "response.output_item.done", output_index=0, item=self._message(status)
        )
        yield self._event(f"response.{status}", response=self._finished(answer, name))

    def whole(self, answer: Answer, name: str | None) -> dict[str, Any]:
        """Return the response."""
        self._writer.rest(answer)
        return self._finished(answer, name)

    def _pieces(self, number: int, pieces: list[Piece]) -> Iterator[Event]:
        for piece in pieces:
            yield self._of_part(
                "response.output_text.delta", delta=piece.text, logprobs=[]
            )
            for annotation in piece.annotations:
                yield self._of_part(
                    "response.output_text.annotation.added",
                    annotation_index=number,
                    annotation=annotation,
                )
                number += 1

    def _event(self, kind: str, **fields: Any) -> Event:
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1, **fields}

    def _of_part(self, kind: str, **fields: Any) -> Event:
        return self._event(
            kind, item_id=self._item, output_index=0, content_index=0, **fields
        )

    def _part(self, *, written: bool = True) -> dict[str, Any]:
        part: dict[str, Any] = {
            "type": "output_text",
            "text": "",
            "annotations": [],
            "logprobs": [],
        }
        if written:
            part["text"] = self._writer.text
            part["annotations"] = list(self._writer.annotations)
        return part

    def _message(self, status: str, *, written: bool = True) -> dict[str, Any]:
        content = [self._part()] if written else []
        return {
            "type": "message",
            "id": self._item,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "metadata": {},
            "tools": [],
            "instructions": self.instructions,
            "parallel_tool_calls": False,
            "tool_choice": "none",
        }

    def _finished(self, answer: Answer, name: str | None) -> dict[str, Any]:
        usage = answer.usage
        counted = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        }
        status = _status(answer)
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._response(status) | {
            "incomplete_details": cut,
            "output": [self._message(status)],
            "usage": counted,
            "selfrag": selfrag_object(answer, self._writer, name, self.index),
        }


def _status(answer: Answer) -> str:
    """Return the status of a response: `incomplete` where the token budget ended the answer."""
    return "incomplete" if answer.finish == "length" else "completed"


Reply: TypeAlias = ChatReply | ResponsesReply
"""What a route answers: events by `start`, `segment` and `finish`, or all at once by `whole`."""
