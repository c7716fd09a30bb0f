"""A server with the text routes of OpenAI, as strict or as deaf to constraints as a test wants. Records every body."""

import json

import loopback


def said(
    text,
    tokens=None,
    finish="stop",
):
    """A chat reply; `tokens` are the generated tokens with log-probabilities of their alternatives."""
    choice = {
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    if tokens is not None:
        choice["logprobs"] = {
            "content": [
                {
                    "token": token,
                    "logprob": top[token],
                    "top_logprobs": [
                        {"token": alternative, "logprob": value}
                        for alternative, value in top.items()
                    ],
                }
                for token, top in tokens
            ]
        }
    return 200, {
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }


class Handler(loopback.Answering):
    def do_GET(self):
        status = 200 if self.server.models else 404
        self.answer(status, {"object": "list", "data": self.server.models})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.paths.append(self.path)
        reply = (
            self.server.reply(body)
            if self.path.endswith(self.server.routes)
            else (404, {"detail": "Not Found"})
        )
        self.answer(*reply)


class ChatServer(loopback.Loopback):
    """Answers with `reply(body)`; use as a context manager."""

    handler = Handler

    def __init__(
        self,
        reply,
        *,
        models=(),
        routes=("",),
    ):
        self.reply, self.bodies, self.paths = reply, [], []
        self.models, self.routes = models, routes
        super().__init__()

    def __exit__(self, *_):
        self.stop()
