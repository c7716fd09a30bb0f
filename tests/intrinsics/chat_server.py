"""A server with the text routes of OpenAI, as strict or as deaf to constraints as a test wants. Records every body."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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


class ChatServer:
    """Answers with `answer(body)`; use as a context manager."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        bodies: list[dict[str, Any]] = []
        paths: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                bodies.append(body)
                paths.append(self.path)
                status, reply = answer(body)
                content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.bodies, self.paths = bodies, paths
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
