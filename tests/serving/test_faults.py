"""Wrong requests, keys, limits, clients that leave, engines that die, and the end of the server."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from random_model import random_model
from scripted import ScriptedEngine
from served import connect, events, random_rag, refusal, soon
from tables import each
from written import EOS, LIMITS

from selfrag.common.errors import EngineError
from selfrag.serving.settings import Capacity

USER = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A."}
JSON = {"Content-Type": "application/json"}


NAMES_OF_CODE = re.compile(r"\n|pydantic|http|[Ii]nput|union|instance|Message|Part")
"""What no error of ours has: lines, addresses, and names of classes."""


class Gated(ScriptedEngine):
    """Finishes requests only while `open` is set, and dies where `dead` is."""

    def __init__(self):
        super().__init__(random_model(0), EOS, limits=LIMITS)
        self.open, self.dead = threading.Event(), False

    @property
    def held(self):
        return len(self._waiting)

    def submit(self, request):
        self._live()
        return super().submit(request)

    def step(self):
        self._live()
        return super().step() if self.open.wait(0.005) else []

    def _live(self):
        if self.dead:
            raise EngineError("the engine process has died")


BAD_FIELDS = """
"messages": [] → messages must have at least 1 item, not 0
"messages": [{"role": "assistant", "content": "A"}] → the user's turn
"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}] → messages.0.content: \
a part of type 'image_url', and this model reads text only; leave it out
"messages": [{"role": "user", "content": 5}] → messages.0.content must be
"messages": "Q" → messages must be a list, not 'Q'
"messages": [{"role": "robot", "content": "A"}] → messages.0.role must be
"messages": [{"role": "user", "content": "LONG"}] → 32,768 characters
"tools": [{"type": "function"}], "tool_choice": "required" → tool_choice: this
"messages": [{"role": "user", "content": null}] → messages.0: no content; a turn of the role user has text
"messages": [{"role": "assistant", "content": null}] → the user's turn
"stop": ["x"] → stop:
"max_tokens": 0 → max_tokens must be greater than or equal to 1, not 0
"selfrag": {"treshold": 0.5} → selfrag.treshold is unknown
"selfrag": {"threshold": 5} → threshold=5.0:
"selfrag": {"threshold": "x"} → selfrag.threshold must be a number, not
"selfrag": {"require": {"issup": 5}} → selfrag.require.issup must be
"selfrag": {"beam": 1000000} → selfrag.beam must be less than or equal to
"selfrag": {"evidence": [{"id": "a"}]} → selfrag.evidence.0.text is missing
"selfrag": {"evidence": [[]]} → selfrag.evidence.0 must be an object, not a
"selfrag": {"guardrails": ["answerability<0.5:abstain"]} → answerability
"selfrag": {"flow": "qr"} → rewrite
""".replace("LONG", "x" * 40_000)


@each("fields, said", BAD_FIELDS)
def test_a_wrong_field_is_told_in_one_line(open_server, fields, said):
    reply = open_server.chat(**json.loads(f"{{{fields}}}"))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert said in error["message"]
    assert not NAMES_OF_CODE.search(error["message"])
    assert error["type"] == "invalid_request_error"
    assert open_server.service.open == 0


@pytest.mark.parametrize("question, count", [("word " * 1_000, 5), ("A?", 1_001)])
def test_a_conversation_longer_than_the_context_has_the_code_of_openai(
    serve, question, count
):
    """Field audit S6."""
    turns = [{"role": "user", "content": question}, ANSWER] * count
    reply = serve().chat(messages=[*turns, USER])
    assert refusal(reply) == (400, "context_length_exceeded")


def test_minus_one_is_no_limit(serve):
    running = serve()
    expected = running.chat().json()["choices"]
    for name in ("max_tokens", "max_completion_tokens"):
        assert running.chat(**{name: -1}).json()["choices"] == expected
    body = {"model": "selfrag", "input": "Q", "max_output_tokens": -1}
    reply = running.client.post("/v1/responses", json=body)
    assert reply.json()["status"] == "completed"


PATHS = "v1/chat/completions v1/responses v1/rescore retrieve search"


def test_a_body_that_is_no_json(serve):
    post = serve().client.post
    number = b'{"model": ' + b"9" * 10_000 + b"}"
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, number, b"null"):
        for path in PATHS.split():
            reply = post(path, content=content, headers=JSON)
            assert reply.status_code == 400
            message = re.sub("UTF|JSON", "", reply.json()["error"]["message"])
            assert message
            assert not NAMES_OF_CODE.search(message)


def test_other_models_and_paths_are_unknown(serve):
    """Field audit S7: GET /v1/models/NAME was 404."""
    running = serve(name="mine")
    reply = running.chat(model="gpt")
    assert refusal(reply) == (404, "model_not_found")
    assert "'mine'" in reply.json()["error"]["message"]
    get = running.client.get
    assert get("/v1/nothing").status_code == 404
    assert get("/v1/chat/completions").status_code == 405
    assert refusal(get("/v1/answers/ans_none")) == (404, "answer_not_found")
    assert refusal(get("/v1/models/owner/other")) == (404, "model_not_found")
    model = get("/v1/models/mine").json()
    assert model.items() >= {"id": "mine", "object": "model"}.items()
    assert get("/v1/models").json()["data"] == [model]


def test_keys(serve):
    get = serve(keys=("first-key", "second-key")).client.get
    for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/answers/x"):
        assert get(path).status_code == 401
        for key in ("", "Bearer wrong", "second-key", "Basic second-key"):
            reply = get(path, headers={"Authorization": key})
            assert reply.status_code == 401
            assert reply.headers["WWW-Authenticate"] == "Bearer"
    headers = {"Authorization": "Bearer second-key"}
    for path in ("/v1/models", "/health", "/"):
        assert get(path, headers=headers if "v1" in path else {}).is_success


def test_a_full_queue_refuses_and_says_when_to_come_back(serve):
    engine = Gated()
    running = serve(random_rag(engine=engine), capacity=Capacity(live=2, queue=1))
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(running.chat) for _ in range(3)]
        try:
            soon(lambda: running.service.open == 3)
            refused = running.chat()
        finally:
            engine.open.set()
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert [one.result().status_code for one in asked] == [200, 200, 200]
    assert running.service.open == 0


@pytest.mark.parametrize("head", [b"Content-Length: 8000000", b"X: y"])
@pytest.mark.parametrize("keys, status", [((), 413), (("0123456789abcdef0123",), 401)])
def test_a_client_that_sends_on_gets_its_refusal(serve, head, keys, status):
    """The connection was closed over what a client still sent, which it saw as a reset."""
    running = serve(keys=keys, capacity=Capacity(body=1_000))
    chunked, part = head == b"X: y", b"x" * 1_000_000
    with connect(running) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + head
        )
        client.sendall(
            b"\r\nTransfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n\r\n"
        )
        for _ in range(8):
            client.sendall(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if chunked:
            client.sendall(b"0\r\n\r\n")
        client.settimeout(20)
        reply = b""
        while b"}}" not in reply:
            piece = client.recv(65_536)
            assert piece, "closed without a reply"
            reply += piece
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert (b"1,000 bytes" in reply) == (status == 413)
    assert running.client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_that_waits_too_long_is_refused_and_so_are_new_ones(serve, stream):
    """54 of 625 honest requests had no answer within 120 seconds, and no status 429 either."""
    engine = Gated()
    limits = Capacity(live=2, queue=5, wait=1)
    running = serve(random_rag(engine=engine), capacity=limits)
    with ThreadPoolExecutor(4) as pool:
        alone = pool.submit(running.chat)  # nobody else waits for it
        soon(lambda: running.service.open == 1)
        started = time.monotonic()
        late = [pool.submit(running.chat, stream=stream) for _ in range(3)]
        replies = [future.result() for future in late]
        assert time.monotonic() - started < 10
        refused = running.chat()
        engine.open.set()
        assert alone.result().status_code == 200
    errors = [
        events(reply)[-1]["error"] if stream else reply.json()["error"]
        for reply in replies
    ]
    assert {error["code"] for error in errors} == {"too_slow"}
    assert "no answer within 1 second beside" in errors[0]["message"]
    if not stream:
        assert {reply.status_code for reply in replies} == {503}
        assert {reply.headers["Retry-After"] for reply in replies} == {"10"}
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "10"
    assert running.service.open == 0


def test_long_evidence_is_read_beside_the_event_loop(serve, monkeypatch):
    """1.5 MB of evidence kept the loop for half a second, and /health with it."""
    threads = set()

    def encode(self, text):
        threads.add(threading.current_thread().name)
        return [100 + ord(character) for character in text[:50]]

    running = serve()
    monkeypatch.setattr("written.Characters.encode", encode)
    text = "long " * 3_000
    evidence = [{"id": str(number), "text": text} for number in range(20)]
    settings = {"evidence": evidence, "mode": "always", "max_segments": 1}
    assert running.chat(selfrag=settings).status_code == 200
    assert threads
    assert not any("(run)" in name for name in threads), threads


@pytest.mark.parametrize(
    "path, stream", [("/v1/chat/completions", False), ("/v1/responses", True)]
)
def test_a_client_that_leaves_cancels_its_work_within_half_a_second(
    serve, path, stream
):
    engine = Gated()
    running = serve(random_rag(engine=engine))
    body = {"model": "selfrag", "stream": stream, "messages": [USER], "input": "Q"}
    content = json.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    with connect(running) as leaving:
        request = f"{head}Content-Length: {len(content)}\r\n\r\n{content}"
        leaving.sendall(request.encode())
        soon(lambda: engine.held > 0)
    assert soon(lambda: not engine.held and running.service.open == 0) < 0.5
    engine.open.set()
    assert running.chat().status_code == 200


def test_a_dead_engine_is_told_and_loaded_again(serve):
    engine, tries = Gated(), [0]
    engine.open.set()

    def reload():
        tries[0] += 1
        if tries[0] == 1:
            raise EngineError("no memory yet")
        return random_rag()

    running = serve(random_rag(engine=engine), reload=reload)
    assert running.chat().is_success
    engine.dead = True
    reply = running.chat()
    assert reply.status_code == 503
    assert "the engine process has died" in reply.json()["error"]["message"]
    get = running.client.get
    health = get("/health")
    assert health.status_code == running.chat().status_code == 503
    assert health.json() == {"status": "recovering"}
    assert "selfrag_engine_up 0.0" in get("/metrics").text
    soon(lambda: get("/health").is_success, 20)
    assert tries == [2]
    assert running.chat().is_success


def test_a_dead_engine_ends_a_stream_with_an_error(serve):
    engine = Gated()
    running = serve(random_rag(engine=engine))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.chat, stream=True)
        try:
            soon(lambda: engine.held > 0)
        finally:
            engine.dead = True
    reply = asked.result()
    assert events(reply)[-1]["error"]["code"] == "engine_down"
    assert reply.text.splitlines()[-2:] == ["data: [DONE]", ""]
    assert running.client.get("/health").json() == {"status": "stopped"}


def test_no_question_and_no_key_is_in_the_metrics(serve):
    running = serve()
    running.chat("A very private question")
    text = running.client.get("/metrics").text
    assert (
        'selfrag_requests_total{route="/v1/chat/completions",status="200"} 1.0' in text
    )
    assert "private" not in text
    assert "selfrag_first_segment_seconds_count 1.0" in text


SERVER = """
import sys, time
sys.path[:0] = {paths!r}
from served import random_rag
import selfrag.cli.options as options
from selfrag.cli.main import main
from scripted import ScriptedEngine
from random_model import random_model
from written import EOS, LIMITS
class Slow(ScriptedEngine):
    def step(self):
        time.sleep(0.2)
        return super().step()
options.load = lambda *_: random_rag(engine=Slow(random_model(0), EOS, limits=LIMITS))
sys.exit(main(["serve", "--port", "0"]))
"""


def test_a_terminated_server_finishes_what_runs():
    here = Path(__file__).parent
    code = SERVER.format(
        paths=[str(here.parent / room) for room in ("serving", "decoding", "engines")]
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    url = process.stdout.readline().split()[-1]
    with ThreadPoolExecutor(1) as pool:
        body = {"model": "demo", "messages": [USER]}
        asked = pool.submit(
            httpx.post, f"{url}/v1/chat/completions", json=body, timeout=30
        )
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
    assert asked.result().status_code == 200
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert errors == ""
