"""A server that strangers may reach: other sites, bounded memory, slow and silent clients, strict JSON, long inputs."""

import copy
import json
import math
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from served import connect, events, random_rag, refusal, soon
from tables import each
from test_faults import JSON, Gated
from test_trace_reading import mutate

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.serving.connections import ConnectionLimits
from selfrag.serving.guard import Access
from selfrag.serving.service import AnswerStore
from selfrag.serving.settings import Capacity

KEY = "0123456789abcdef0123"


OWN_NAMES = "localhost LOCALHOST. app.localhost 127.0.0.1 [::1] ::1"


@pytest.mark.parametrize("host", OWN_NAMES.split())
def test_names_under_which_a_server_without_keys_answers(host):
    assert Access().allows_host(host)


@pytest.mark.parametrize(
    "access, host, allowed",
    [
        (Access(), "", False),
        (Access(), "evil.example", False),
        (Access(), "localhost.evil.example", False),
        (Access(), "10.0.0.5", False),
        (Access(), "127.1x", False),
        (Access(hosts={"rag.example"}), "rag.example", True),
        (Access(any_address=True), "10.0.0.5", True),
        (Access(any_address=True), "evil.example", False),
    ],
)
def test_names_of_others_are_allowed_by_settings_alone(access, host, allowed):
    assert access.allows_host(host) is allowed


STRANGERS = """
Host → evil.example
Host → evil.example:8000
Host → 127.0.0.1.evil.example
Host → user@localhost:x
Origin → http://evil.example
Origin → null
"""


@pytest.mark.parametrize("path", ["/", "/health", "/v1/answers/x"])
@each("name, value", STRANGERS)
def test_issue_45_another_site_reads_nothing_from_a_server_without_keys(
    open_server, path, name, value
):
    status, code = refusal(open_server.client.get(path, headers={name: value}))
    assert status == 403
    assert code[-11:] == "not_allowed"


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization"])
@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_a_header_that_comes_twice_is_refused(serve, name, keys):
    lines = ["GET /v1/models HTTP/1.1", "Connection: close"]
    headers = {"Host": "localhost", "Authorization": f"Bearer {KEY}"}
    headers.setdefault(name, "http://localhost")
    for header, value in headers.items():
        lines += [f"{header}: {value}"] * (1 + (header == name))
    with connect(serve(keys=keys)) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        reply = client.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"repeated_header" in reply


def test_pages_of_this_machine_and_servers_with_keys_are_asked_under_any_name(
    open_server, serve
):
    headers = {"Origin": "http://localhost:3000"}
    assert open_server.client.get("/v1/models", headers=headers).status_code == 200
    keyed = serve(keys=(KEY,)).client
    headers = {
        "Host": "rag.example",
        "Origin": "https://rag.example",
        "Authorization": f"Bearer {KEY}",
    }
    assert keyed.get("/v1/models", headers=headers).status_code == 200


def test_issue_45_kept_answers_are_bounded_by_bytes_and_the_oldest_go():
    def answer(name):
        noise = random.Random(name).randbytes(30_000).hex()
        return Answer(name, noise, (), Usage(), Trace(name, Decoding(), (), (), None))

    store = AnswerStore(most_bytes=100_000)
    names = [store.keep(answer(f"Q{number}")) for number in range(8)]
    kept = [store.find(name) is not None for name in names]
    count = store.size().answers
    assert 1 <= count < 8
    assert kept == [False] * (8 - count) + [True] * count
    assert 50_000 < store.size().bytes <= 100_000
    assert store.find(AnswerStore(most=2).keep(answer("other"))) is None


def test_servers_that_keep_answers_in_one_file_find_each_others(tmp_path):
    first, second = (AnswerStore(tmp_path / "answers.sqlite") for _ in range(2))
    answer = Answer("Q", "A.", (), Usage(), Trace("Q", Decoding(), (), (), None))
    names = [first.keep(answer), second.keep(answer)]
    for store in (first, second):
        assert [store.find(name)["answer"]["text"] for name in names] == ["A.", "A."]
        store.close()


def test_an_answer_that_cannot_be_kept_is_sent_all_the_same(serve, caplog):
    """At 8886b772 a full disk was status 400, and the answer was lost."""
    running = serve()
    running.service.store.close()
    reply = running.chat().json()
    assert reply["choices"][0]["message"]["content"]
    assert reply["selfrag"]["id"] is None
    assert "an answer is sent without being kept: Cannot operate on" in caplog.text


def test_metrics_tell_what_is_kept_and_how_late_the_loop_is(serve):
    running = serve()
    running.chat()
    time.sleep(1.2)
    lines = running.client.get("/metrics").text.splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert float(values["selfrag_kept_answers"]) == 1
    assert float(values["selfrag_kept_bytes"]) > 100
    assert float(values["selfrag_event_loop_lag_seconds_count"]) >= 1


STRICT = r"""
"selfrag": {"threshold": NaN}
"selfrag": {"weights": {"issup": Infinity}}
"selfrag": {"weights": {"issup": 1e400}}
"selfrag": {"evidence": [{"id": "a", "text": "t", "metadata": {"x": NaN}}]}
"selfrag": {"evidence": [{"id": "\ud800", "text": "\ud800"}]}
"""


@each("fields", STRICT)
@pytest.mark.parametrize("stream", ["true", "false"])
def test_issue_45_json_is_strict_both_ways(open_server, fields, stream):
    question = '"messages": [{"role": "user", "content": "Q"}]'
    body = f'{{"model": "selfrag", {question}, "stream": {stream}, {fields}}}'
    reply = open_server.client.post("/v1/chat/completions", content=body, headers=JSON)
    assert reply.status_code == 400
    assert "\n" not in reply.json()["error"]["message"]


def test_metadata_of_a_retriever_never_makes_invalid_json(serve):
    values = {"x": math.nan, "y": math.inf, "z\ud800": "w\udfff", "n": 1}
    odd = Passage("a", "Found.", metadata=values)
    assert odd.metadata == {"z\ufffd": "w\ufffd", "n": 1}
    rag = random_rag()
    rag.retriever = lambda queries, k: [[odd]] * len(queries)
    reply = serve(rag).chat(stream=True, selfrag={"mode": "always"})
    assert events(reply)
    assert not re.search(r"\b(NaN|Infinity)\b", reply.text)


def test_issue_45_a_long_conversation_is_refused_before_the_loop_tokenises_it(
    open_server,
):
    for words, said in ((700_000, "at most 1,000,000"), (100_000, "longer than the")):
        system = {"role": "system", "content": "word " * words}
        started = time.monotonic()
        reply = open_server.chat(messages=[system, {"role": "user", "content": "Q"}])
        assert refusal(reply) == (400, "context_length_exceeded")
        assert said in reply.json()["error"]["message"]
        assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "]
)
def test_issue_45_a_connection_that_sends_no_request_is_closed(serve, sent):
    running = serve(limits=ConnectionLimits(head_seconds=0.5))
    with connect(running) as client:
        client.sendall(sent)
        client.settimeout(20)
        assert client.recv(100) == b""


def test_a_head_byte_by_byte_does_not_hold_a_connection(serve):
    running = serve(limits=ConnectionLimits(head_seconds=1.0))
    started = time.monotonic()
    with connect(running) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        with suppress(OSError):
            while time.monotonic() - started < 30:
                client.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() - started < 20


HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
QUESTION = b'{"model": "selfrag", "messages": [{"role": "user", "content": "Q"}]}'
CHAT = HEAD.replace(b"/search", b"/v1/chat/completions")
LENGTH = b"Content-Length: %d\r\n\r\n"
ENDLESS = {
    "trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-Long: %b\r\n"),
    "one trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: ", b"%b"),
    "an extension of a chunk": (CHUNKED + b"2;", b"%b"),
    "the head of a second request": (
        CHAT + LENGTH % len(QUESTION) + QUESTION + b"GET / HTTP/1.1\r\nX-Long: ",
        b"%b",
    ),
    "many headers": (HEAD, b"X: y\r\n" * 800 + b"X: %b\r\n"),
    "a method": (b"", b"%b"),
    "a body after its answer": (HEAD + LENGTH % 100_000_000, b"%b"),
    "chunks without end": (CHUNKED, b"fa0\r\n%b\r\n"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_issue_45_bytes_without_end_are_cut(serve, name):
    """Of heads, trailers and extensions 64 KiB are taken, of a body 4 MiB; sockets hold some megabytes more."""
    running = serve(random_rag(engine=Gated()))
    begin, part = ENDLESS[name]
    sent = 0
    with connect(running) as client, suppress(OSError):
        client.settimeout(60)
        client.sendall(begin)
        for sent in range(10_000):  # noqa: B007
            client.sendall(part % (b"x" * 4_000))
    assert sent < 9_999
    assert running.client.get("/health").status_code == 200


def test_a_body_that_does_not_come_is_refused(serve, monkeypatch):
    from selfrag.serving import app
    from selfrag.serving.guard import RequestLimits

    monkeypatch.setattr(
        app, "RequestLimits", lambda body: RequestLimits(body, body_seconds=0.5)
    )
    with connect(serve()) as client:
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        client.settimeout(20)
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_issue_45_one_address_cannot_take_all_connections(serve):
    running = serve(limits=ConnectionLimits(per_address=5))
    held = [connect(running) for _ in range(5)]
    time.sleep(0.2)
    with connect(running) as refused:
        refused.settimeout(10)
        assert refused.recv(100).startswith(b"HTTP/1.1 503")
    for client in held:
        client.close()
    soon(lambda: running.client.get("/health").status_code == 200)


def test_issue_45_searches_have_a_place_in_the_queue(serve):
    engine = Gated()
    running = serve(random_rag(engine=engine), capacity=Capacity(live=1, queue=0))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.chat)
        soon(lambda: engine.held > 0)
        for path, body in (
            ("/search", {"query": "Q"}),
            ("/retrieve", {"queries": ["Q"]}),
        ):
            reply = running.client.post(path, json=body)
            assert refusal(reply) == (429, "queue_full")
        engine.open.set()
        assert asked.result().status_code == 200
    assert running.client.post("/search", json={"query": "Q"}).status_code == 200
    assert running.service.open == 0


def test_issue_45_a_hostile_trace_is_no_error_of_the_server(serve):
    running = serve()
    name = running.chat(selfrag={"max_segments": 2}).json()["selfrag"]["id"]
    trace = running.client.get(f"/v1/answers/{name}").json()["trace"]
    loop = copy.deepcopy(trace)
    loop["nodes"][0]["parent"] = 0
    rng = random.Random(45)
    statuses = set()
    for hostile in [loop, *(mutate(rng, trace) for _ in range(100))]:
        content = json.dumps({"trace": hostile, "weights": {"issup": 2.0}})
        reply = running.client.post("/v1/rescore", content=content, headers=JSON)
        statuses.add(reply.status_code)
    assert statuses <= {200, 400}
