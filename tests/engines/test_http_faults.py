"""The HTTP engine against a server that misbehaves on purpose: every fault ends in one clear line, others continue."""

from __future__ import annotations

import json
import re
import time
from collections import Counter

import pytest
from loopback import Answering, Loopback
from pump import serve

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.errors import EngineError

MODELS = {"data": [{"id": "tiny", "root": "tiny", "max_model_len": 64}, {"id": "lora", "parent": "tiny"}]}


class Server(Loopback):
    """Answers like `vllm serve`; the first prompt id of a request chooses the fault."""

    def __init__(self, port=0):
        self.handler = Handler
        self.models = MODELS
        self.key = None
        self.seen = Counter()
        self.ids = []
        self.sent_models = []
        self.aborted = []
        self.now = self.most = 0
        self.delay = 0.0
        self.refusal = None
        super().__init__(port)


class Handler(Answering):
    server: Server

    def do_GET(self):
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            time.sleep(self.server.delay)
            self.answer(200, self.server.models)
        else:
            self.answer(404, {"error": {"message": "Not Found"}})

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/inference/v1/abort_requests":
            if self.server.refusal:
                return self.answer(*self.server.refusal)
            self.server.aborted += sent["request_ids"]
            return self.answer(200, b"")
        if self.path == "/v1/completions":
            return self.answer(*self.server.refusal)
        fault = sent["token_ids"][0]
        with self.server.lock:
            self.server.seen[fault] += 1
            self.server.ids.append(sent["request_id"])
            self.server.sent_models.append(sent["model"])
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            self.act(fault, sent, self.server.seen[fault])
        finally:
            with self.server.lock:
                self.server.now -= 1

    def act(self, fault, sent, turn):
        if fault == SLOW:
            time.sleep(0.05)
        elif fault == SILENT:
            time.sleep(3.0)
        elif fault in STATUSES:
            return self.answer(STATUSES[fault], {"error": {"message": "bad\nluck", "type": "x", "code": 1}})
        elif fault == ONCE_429 and turn == 1:
            return self.answer(429, b"later", Retry_After="0.1")
        elif fault == ONCE_503 and turn == 1:
            return self.answer(503, b"", Retry_After="soon")
        elif fault == ONCE_DROPPED and turn == 1:
            self.close_connection = True
            return self.connection.close()
        elif fault == GARBAGE:
            return self.answer(200, b"<html>\nhello")
        elif fault == CUT:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices"')
            self.close_connection = True
            return None
        return self.answer(200, good(sent, drop_last=fault == UNWATCHED))


SLOW, SILENT, ONCE_429, ONCE_503, ONCE_DROPPED, GARBAGE, CUT, UNWATCHED = range(10, 18)
STATUSES = {20: 400, 21: 500, 22: 503, 23: 404}


def good(sent, *, drop_last=False):
    params = sent["sampling_params"]
    watched = params.get("logprob_token_ids", [])[: -2 if drop_last else None]
    entries = [{"token_id": i, "logprob": -1.0 - i, "rank": 1} for i in (5, *watched)]
    row = {"token_id": 5, "logprob": -6.0, "rank": 1, "top_logprobs": entries[: max(params["logprobs"], 1)]}
    count = params["max_tokens"]
    choice = {"token_ids": [5] * count, "finish_reason": "length", "logprobs": {"content": [row] * count}}
    return {"choices": [{**choice, "index": 0, "stop_reason": None}], "usage": {}}


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


def load(server, **options):
    settings = {"vocab_size": 100, "backoff": 0.01, "retries": 2, "read_timeout": 30.0, **options}
    return HTTPEngine.load(HTTPConfig(server.url, **settings))


@pytest.fixture
def engine(server):
    engine = load(server)
    yield engine
    engine.close()


def ask(fault, **fields):
    return Generate((fault, 3, 4), 2, watch_ids=(7, 8), **fields)


def test_good_answers_and_adapters_by_name(engine, server):
    base, lora = serve(engine, [ask(3), ask(4, adapter="lora")])
    assert isinstance(base, Generated)
    assert isinstance(lora, Generated)
    assert base.watched.tolist() == [[-8.0, -9.0]] * 2
    assert base.finish is Finish.BUDGET
    assert sorted(server.sent_models) == ["lora", "tiny"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (20, "status 400: bad luck"),
        (21, "status 500: bad luck"),
        (22, "status 503: bad luck"),
        (23, "status 404: bad luck"),
        (GARBAGE, "not JSON"),
        (UNWATCHED, "no log-probability of token id 8 at position 0"),
    ],
)
def test_one_failure_is_one_line_and_others_finish(engine, server, fault, reason):
    """Defects 8 and 9 in the last case: a watched id that does not come back fails, it is never filled in."""
    first, failed, last = serve(engine, [ask(3), ask(fault), ask(4)])
    assert isinstance(first, Generated)
    assert isinstance(last, Generated)
    assert isinstance(failed, Failed)
    assert reason in failed.reason
    assert "\n" not in failed.reason
    assert server.seen[fault] == (3 if fault == 22 else 1)  # only what may pass is sent again


@pytest.mark.parametrize("fault", [ONCE_429, ONCE_503, ONCE_DROPPED])
def test_passing_failures_are_repeated_under_a_fresh_id(engine, server, fault):
    [result] = serve(engine, [ask(fault)])
    assert isinstance(result, Generated)
    assert server.seen[fault] == 2
    assert len(set(server.ids)) == 2


def test_silence_fails_that_request_and_aborts_it_at_the_server(server):
    engine = load(server, read_timeout=0.5)
    silent, fine = serve(engine, [ask(SILENT), ask(3)])
    assert isinstance(fine, Generated)
    assert isinstance(silent, Failed)
    assert silent.reason == f"{server.url}: no answer within 0.5 s"
    assert server.seen[SILENT] == 1
    assert server.aborted[0].startswith("generate-tokens-")
    assert server.aborted[0].removeprefix("generate-tokens-") in server.ids
    engine.close()


def test_concurrency_is_bounded(server):
    engine = load(server, max_concurrency=3)
    results = serve(engine, [ask(SLOW) for _ in range(12)])
    assert all(isinstance(result, Generated) for result in results)
    assert server.most == 3
    engine.close()


def test_abort_reaches_the_server_and_nothing_comes_back(engine, server):
    dropped, kept = engine.submit(ask(SILENT)), engine.submit(ask(3))
    wait(lambda: server.seen[SILENT] == 1)
    engine.abort([dropped, 10**9])
    results = {}
    wait(lambda: results.update(engine.step()) or (server.aborted and kept in results))
    assert set(results) == {kept}
    assert engine.step() == []


def test_server_gone_in_the_middle_is_one_clear_line_and_coming_back_is_fine(server):
    engine = load(server, retries=1)
    serve(engine, [ask(3)])
    port = server.server_address[1]
    server.stop()
    for _ in range(3):
        engine.submit(ask(3))
    expected = rf"no server at {re.escape(server.url)} after 2 attempts .*start it with `vllm serve MODEL`"
    with pytest.raises(EngineError, match=expected) as caught:
        wait(lambda: engine.step() and False)
    assert "\n" not in str(caught.value)
    assert engine.step() == []
    back = Server(port)
    [result] = serve(engine, [ask(4)])
    assert isinstance(result, Generated)
    engine.close()
    back.stop()


def test_api_key_from_argument_and_environment(server, monkeypatch):
    server.key = "secret"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(EngineError, match=r"answered 401: the key in VLLM_API_KEY is not set \(Unauthorized\)"):
        load(server)
    load(server, api_key="secret").close()
    monkeypatch.setenv("MY_KEY", "secret")
    load(server, api_key_env="MY_KEY").close()
    assert "secret" not in repr(HTTPConfig(server.url, api_key="secret"))


def test_a_server_that_hangs(server):
    server.delay = 2.0
    with pytest.raises(EngineError, match=r"http://.*/v1/models: no answer within 0\.3 s"):
        load(server, read_timeout=0.3)


@pytest.mark.parametrize("refusal", [(404, b"Not Found"), (403, {"error": {"message": "endpoints are disabled"}})])
def test_a_server_without_the_route(server, refusal):
    """vLLM 0.32 answers 403 unless it was started with --enable-scale-out; other servers know neither route."""
    server.refusal = refusal
    with pytest.raises(EngineError, match=rf"gives no log-probabilities of token ids \(status {refusal[0]}: "):
        load(server)


def test_a_server_that_is_something_else(server):
    server.models = [1, 2]
    with pytest.raises(EngineError, match="is it a vllm serve"):
        load(server)


def test_closed_engine(server):
    engine = load(server)
    engine.submit(ask(SILENT))
    engine.close()
    engine.close()
    engine.abort([0])
    for call in (engine.step, lambda: engine.submit(ask(3))):
        with pytest.raises(EngineError, match="closed"):
            call()


def wait(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
