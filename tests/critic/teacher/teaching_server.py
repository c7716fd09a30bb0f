"""A real HTTP server on the loopback that answers like an OpenAI-compatible endpoint, or misbehaves where told to.

The label of an item is a fixed function of its text, so that any two runs over the same cases must agree. An
instruction that begins with `!fault` makes the server misbehave for that item, with `!once_fault` the first time only.
"""

import hashlib
import json
import re
import time
from collections import Counter

from loopback import Answering, Loopback

from critic.cases import Case
from retrieval.passage import Passage

ITEM = "# Item to judge\n"
FAULT = re.compile(r"!(once_)?(\w+)")
ODD = {
    "off_set": "Perhaps.",
    "explained": "[Relevant]\nExplanation: the passage is not [Irrelevant].",
    "echo_key": "my key is {key}",
    "huge": "x" * (3 << 20),
}
"""Fault -> what the server says instead of a label."""


class TeachingServer(Loopback):
    """Knows `choice` and `schema`; what it does not know it refuses, or ignores."""

    request_queue_size = 128

    def __init__(self, port=0):
        self.handler = Handler
        self.knows = {"choice", "schema"}
        self.refuses = True
        self.counts_tokens = True
        self.key = None
        self.refusal = None
        self.delay = 0.0
        self.bodies = []
        self.seen = Counter()
        self.started = []
        super().__init__(port)

    def handle_error(self, request, client_address):
        pass


class Handler(Answering):
    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        chat = self.path == "/v1/chat/completions"
        assert chat or self.path == "/v1/completions"
        if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
            return self.answer(
                401,
                {
                    "error": {
                        "message": f"wrong key {self.headers.get('Authorization')}"
                    }
                },
            )
        if server.refusal:
            status, content, headers = server.refusal
            return self.answer(status, content, **headers)
        text = sent["messages"][0]["content"] if chat else sent["prompt"]
        item = text.rpartition(ITEM)[2]
        with server.lock:
            server.bodies.append(sent)
            server.seen[item] += 1
            server.started.append(time.monotonic())
        time.sleep(server.delay)
        constraint = constraint_of(sent)
        if server.refuses and constraint not in server.knows | {"free"}:
            return self.answer(
                400, {"error": {"message": "Unrecognized request argument"}}
            )
        once, fault = found.groups() if (found := FAULT.search(item)) else (None, None)
        if fault is None or (once and server.seen[item] > 1):
            return self.answer(200, reply(server, constraint, text, item, chat=chat))
        if fault == "dropped":
            self.close_connection = True
            return self.connection.close()
        if fault.isdigit():
            return self.answer(
                int(fault),
                {"error": {"message": "bad\nluck \x1b[31m"}},
                Retry_After="0.3",
            )
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.answer(200, packed(ODD[fault].format(key=key), chat=chat))


def constraint_of(sent):
    if "structured_outputs" in sent:
        return "choice"
    if "response_format" in sent:
        return "schema"
    return "free"


def packed(text, *, chat, **fields):
    choice = (
        {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    )
    return {"choices": [{**choice, "finish_reason": "stop", **fields}]}


def reply(server, constraint, text, item, *, chat):
    offered = re.findall(r"^- (\[.+?\]|\w) - ", text, re.MULTILINE)
    surface = offered[int(hashlib.sha256(item.encode()).hexdigest(), 16) % len(offered)]
    said = f"{surface}\nExplanation: because of [Relevant] reasons."
    if constraint == "schema" and constraint in server.knows:
        said = json.dumps({"label": surface})
    elif constraint in server.knows:
        said = surface
    packet = packed(said, chat=chat)
    if server.counts_tokens:
        packet["usage"] = {"prompt_tokens": 100, "completion_tokens": 4}
    return packet


def questions(count, *, fault=""):
    """Cases of IsRel with distinct texts."""
    return [
        Case.of(
            "IsRel",
            f"{fault} question {number}".strip(),
            evidence=Passage(f"p{number}", f"text {number}"),
            id=f"q{number}",
            dataset="set",
            rule="rule",
        )
        for number in range(count)
    ]
