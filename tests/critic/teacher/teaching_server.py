"""A real HTTP server on the loopback that answers like an OpenAI-compatible endpoint, or misbehaves where told to.

The label of an item is a fixed function of its text, so that any two runs over the same cases must agree. An
instruction that begins with `!fault` makes the server misbehave for that item.
"""

import hashlib
import json
import math
import re
import time
from collections import Counter

from loopback import Answering, Loopback

from critic.cases import Case, Question

ITEM = "# Item to judge\n"
ONCE = re.compile(r"!once_(\w+)")
ALWAYS = re.compile(r"!(\w+)")


class TeachingServer(Loopback):
    """Knows `choice`, `schema` and `logprobs`; what it does not know it refuses, or ignores."""

    request_queue_size = 128

    def __init__(self, port=0):
        self.handler = Handler
        self.knows = {"choice", "schema", "logprobs"}
        self.refuses = True
        self.counts_tokens = True
        self.key = None
        self.refusal = None
        self.delay = 0.0
        self.hidden = ()  # letters that are not among the log-probabilities told
        self.confidence = 0.9
        self.bodies = []
        self.seen = Counter()
        self.started = []
        self.now = self.most = 0
        super().__init__(port)

    def handle_error(self, request, client_address):
        pass


class Handler(Answering):
    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            return self.answer(404, {"error": {"message": f"no {self.path}"}})
        if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
            return self.answer(401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}})
        if server.refusal:
            status, content, headers = server.refusal
            return self.answer(status, content, **headers)
        text = sent["messages"][0]["content"] if chat else sent["prompt"]
        item = text.rpartition(ITEM)[2]
        with server.lock:
            server.bodies.append(sent)
            server.seen[item] += 1
            turn = server.seen[item]
            server.started.append(time.monotonic())
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            time.sleep(server.delay)
            if not self.refused(sent) and not self.misbehaved(item, turn, chat):
                self.answer(200, reply(server, sent, text, item, chat=chat))
        finally:
            with server.lock:
                server.now -= 1

    def refused(self, sent):
        server = self.server
        if not server.refuses or constraint_of(sent) in server.knows | {"free"}:
            return False
        self.answer(400, {"error": {"message": "Unrecognized request argument"}})
        return True

    def misbehaved(self, item, turn, chat):
        once, always = ONCE.search(item), ALWAYS.search(item)
        fault = once[1] if once and turn == 1 else always[1] if always and not once else None
        if fault is None:
            return False
        text = {
            "off_set": "Perhaps.",
            "explained": "[Relevant]\nExplanation: the passage is not [Irrelevant].",
            "empty": "  \n",
            "surrogate": "\ud800 nothing",
            "echo_key": f"my key is {self.headers.get('Authorization', '').removeprefix('Bearer ')}",
        }
        raw = {
            "not_utf8": b'{"choices": [{"message": {"content": "\xff\xfe"}}]}',
            "no_choice": b'{"choices": []}',
            "wrong_types": b'{"choices": [{"message": {"content": 7}}], "usage": {"prompt_tokens": "many"}}',
            "deep": b"[" * 200_000,
            "huge": b'{"choices": [{"message": {"content": "' + b"x" * (3 << 20) + b'"}}]}',
            "refused": b'{"choices": [{"message": {"content": null, "refusal": "I cannot judge this."}}]}',
            "filtered": b'{"choices": [{"finish_reason": "content_filter", "message": {"content": "[Relevant]"}}]}',
        }
        if fault == "429":
            self.answer(429, {"error": {"message": "slow down"}}, Retry_After="0.3")
        elif fault.isdigit():
            self.answer(int(fault), {"error": {"message": "bad\nluck \x1b[31m"}})
        elif fault in text:
            self.answer(200, packed(text[fault], chat=chat))
        elif fault in raw:
            self.answer(200, raw[fault])
        elif fault == "dropped":
            self.close_connection = True
            self.connection.close()
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices"')
            self.close_connection = True
        elif fault == "drip":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            for _ in range(15):  # every byte in time, the whole never
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
            self.close_connection = True
        else:
            raise AssertionError(fault)
        return True


def constraint_of(sent):
    if "structured_outputs" in sent:
        return "choice"
    if "response_format" in sent:
        return "schema"
    return "logprobs" if sent.get("logprobs") else "free"


def packed(text, *, chat, **fields):
    choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"choices": [{**choice, "finish_reason": "stop", **fields}]}


def reply(server, sent, text, item, *, chat):
    offered = re.findall(r"^- (\[.+?\]|\w) - ", text, re.MULTILINE)
    surface = offered[int(hashlib.sha256(item.encode()).hexdigest(), 16) % len(offered)]
    constraint = constraint_of(sent)
    if constraint not in server.knows:
        constraint = "free"
    fields = {}
    if constraint == "schema":
        said = json.dumps({"label": surface})
    elif constraint == "choice":
        assert surface in sent["structured_outputs"]["choice"]
        said = surface
    elif constraint == "logprobs":
        said = surface
        rest = (1 - server.confidence) / len(offered)
        told = {letter: math.log(server.confidence if letter == surface else rest) for letter in offered}
        told = {letter: value for letter, value in told.items() if letter not in server.hidden} | {"The": -9.0}
        entries = [{"token": letter, "logprob": value} for letter, value in told.items()]
        content = {"content": [{"token": surface, "logprob": 0.0, "top_logprobs": entries}]}
        fields["logprobs"] = content if chat else {"top_logprobs": [told]}
    else:
        said = f"{surface}\nExplanation: because of [Relevant] reasons."
    packet = packed(said, chat=chat, **fields)
    if server.counts_tokens:
        packet["usage"] = {"prompt_tokens": 100, "completion_tokens": 4}
    return packet


def questions(count, *, group="IsRel", fault=""):
    """Cases of IsRel with distinct texts."""
    from retrieval.passage import Passage

    return [
        Question(
            f"q{number}",
            Case(group, f"{fault} question {number}".strip(), evidence=Passage(f"p{number}", f"text {number}")),
            "set",
            "rule",
        )
        for number in range(count)
    ]
