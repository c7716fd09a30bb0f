"""A server with the text routes of OpenAI, as strict or as deaf to constraints as a test wants. Records every body."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import loopback

Answer = tuple[int, Any]


def said(text: str, tokens: list[tuple[str, dict[str, float]]] | None = None, finish: str = "stop") -> Answer:
    """A chat reply; `tokens` are the generated tokens with log-probabilities of their alternatives."""
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    if tokens is not None:
        choice["logprobs"] = {
            "content": [
                {
                    "token": token,
                    "logprob": top[token],
                    "top_logprobs": [{"token": one, "logprob": value} for one, value in top.items()],
                }
                for token, top in tokens
            ]
        }
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


class Handler(loopback.Answering):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.paths.append(self.path)
        self.answer(*self.server.reply(body))


class ChatServer(loopback.Loopback):
    """Answers with `reply(body)`; use as a context manager."""

    handler = Handler

    def __init__(self, reply: Callable[[dict[str, Any]], Answer]) -> None:
        self.reply, self.bodies, self.paths = reply, [], []
        super().__init__()

    def __exit__(self, *_: object) -> None:
        self.stop()
