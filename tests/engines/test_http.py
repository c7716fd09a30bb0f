"""The HTTP engine: settings, what is sent, how replies are read, and a server that misbehaves on purpose."""

import json
import re
import time
from collections import Counter
from math import inf, nan

import numpy as np
import pytest
from json_files import table
from loopback import Answering, Loopback
from pump import serve
from refusals import refused

from selfrag.common.errors import EngineError
from selfrag.engines.base import EngineLimits
from selfrag.engines.http import (
    COMPLETIONS,
    TOKENS,
    BadReplyError,
    HTTPConfig,
    HTTPEngine,
    served,
)
from selfrag.reflection.requests import Failed, Finish, Generate, Generated

URL = "http://127.0.0.1:8000"
REQUEST = Generate((5, 6, 7), 3, stop_ids=(9,), watch_ids=(0, 2, 11))


SENSELESS = """
{"url": "127.0.0.1:8000"} | is not a web address
{"url": "ftp://x"} | is not a web address
{"url": "http://"} | is not a web address
{"url": "http://[bad"} | is not a web address
{"url": ""} | is not a web address
{"max_concurrency": 0} | max_concurrency
{"read_timeout": 0} | read_timeout
{"max_logprobs": 0} | max_logprobs
{"retries": -1} | retries
{"connect_timeout": -1} | connect_timeout
"""


@pytest.mark.parametrize("settings, said", table(SENSELESS))
def test_senseless_settings(settings, said):
    with refused(said):
        HTTPConfig(**{"url": URL, **json.loads(settings)})


def test_models_of_a_server(tmp_path):
    m = {"id": "m", "root": "/models/m", "max_model_len": 99}
    n = {"id": "n", "max_model_len": 5}
    every = [m, n, {"id": "a", "parent": "/models/m"}]

    def found(cards, **settings):
        settings = {"vocab_size": 7, **settings}
        return served({"data": cards}, HTTPConfig(URL, **settings))

    assert found(every, model="m") == ("m", EngineLimits(99, 7, 19, frozenset({"a"})))
    assert found(every, model="n")[1].adapters == frozenset()
    assert found([m, {**m, "id": "alias"}])[0] == "m"
    for cards, said in (
        (every, "it serves: m, n"),
        (None, "lists no models"),
        ([{"id": "m", "root": []}], "lists no models"),
        ([{"id": "m"}], "max_model_len of m"),
    ):
        with pytest.raises(EngineError, match=said):
            found(cards)
    sizes = {"vocab_size": None, "model_dir": str(tmp_path)}
    for config in ({"vocab_size": 123}, {"text_config": {"vocab_size": 123}}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert found([m], **sizes)[1].vocab_size == 123
    (tmp_path / "config.json").write_text("{}")
    for folder, said in ((str(tmp_path), "="), (None, "= or model_dir=")):
        with pytest.raises(EngineError, match=f"pass vocab_size{said}"):
            found([m], **sizes | {"model_dir": folder})


def position(sampled, values):
    """A position as the server writes it: the sampled token first, the list cut at `logprobs` entries."""
    entries = {sampled: values[sampled], **values}
    top = [
        {"token_id": token, "logprob": value, "rank": 1}
        for token, value in entries.items()
    ]
    return {
        "token_id": sampled,
        "logprob": values[sampled],
        "rank": 1,
        "top_logprobs": top,
    }


def reply(**choice):
    rows = [
        position(8, {8: -0.1, 0: -1.0, 2: -2.0, 11: -3.0}),
        position(11, {11: -0.3, 0: -1.5, 2: -2.5}),
    ]
    whole = {
        "index": 0,
        "token_ids": [8, 11],
        "finish_reason": "length",
        "stop_reason": None,
    }
    usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    return {
        "choices": [{**whole, "logprobs": {"content": rows}, **choice}],
        "usage": usage,
    }


ROW = position(8, {8: -1, 0: -1, 2: -1, 11: -1})


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"<html>", b"{", b"\xff", b"null", b"[]", b"{}", b'{"choices": []}'),
        *(reply(token_ids=ids) for ids in ([], [8], [8, 12])),
        reply(logprobs={"content": None}),
        reply(finish_reason="abort"),
        reply(token_ids=[8] * 4, logprobs={"content": [ROW] * 4}),
    ],
)
def test_replies_that_lack_what_was_asked_for(content):
    sent = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(BadReplyError) as caught:
        TOKENS.parse(sent, REQUEST)
    assert "\n" not in str(caught.value)


def completion():
    """The same reply as `/v1/completions` writes it."""
    value = reply()
    rows = value["choices"][0]["logprobs"]["content"]
    named = [
        {
            f"token_id:{one['token_id']}": one["logprob"]
            for one in (row, *row["top_logprobs"])
        }
        for row in rows
    ]
    own = [next(iter(one.items())) for one in named]
    lists = {
        "tokens": [name for name, _ in own],
        "token_logprobs": [value for _, value in own],
        "top_logprobs": named,
    }
    value["choices"][0]["logprobs"] = lists
    return value


LONG = "token_id:" + "9" * 5000


def nodes(value):
    """Every place in a reply: what holds it, and its key there."""
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield value, key
        yield from nodes(inner)


@pytest.mark.parametrize("wire, good", [(TOKENS, reply), (COMPLETIONS, completion)])
@pytest.mark.parametrize(
    "bad",
    [
        None,
        True,
        False,
        -1,
        12,
        0.5,
        -9999.0,
        -inf,
        nan,
        "-1",
        [],
        {},
        [3],
        {"a": 1},
        LONG,
    ],
)
def test_a_reply_damaged_anywhere_is_read_right_or_refused(bad, wire, good):
    """Each node of a good reply replaced: either an error, or every number is one that was sent as a number."""
    whole = wire.parse(json.dumps(good()).encode(), REQUEST)
    assert (whole.token_ids, whole.token_logprobs, whole.cached_tokens) == (
        (8, 11),
        (-0.1, -0.3),
        2,
    )
    np.testing.assert_allclose(whole.watched, [[-1.0, -2.0, -3.0], [-1.5, -2.5, -0.3]])
    for at in range(len(list(nodes(good())))):
        value = good()
        container, key = list(nodes(value))[at]
        container[key] = bad
        try:
            result = wire.parse(json.dumps(value).encode(), REQUEST)
        except BadReplyError:
            continue
        sent = [holder[name] for holder, name in nodes(value)]
        numbers = {np.float32(one) for one in sent if type(one) in (int, float)}
        assert {
            np.float32(one) for one in (*result.token_logprobs, *result.watched.ravel())
        } <= numbers
        assert all(type(one) is int and one in numbers for one in result.token_ids)
        assert result.watched.shape == (len(result.token_ids), 3)
        assert ((result.watched > -9999) & (result.watched <= 1e-3)).all()


MODELS = {
    "data": [
        {"id": "tiny", "root": "tiny", "max_model_len": 64},
        {"id": "lora", "parent": "tiny"},
    ]
}
SLOW, SILENT, DROPPED, UNWATCHED = range(10, 14)
BAD_LUCK = {"error": {"message": "bad\nluck", "type": "x", "code": 1}}
FAULTS = {
    20: (400, BAD_LUCK),
    21: (500, BAD_LUCK),
    22: (503, BAD_LUCK),
    23: (404, BAD_LUCK),
    24: (200, b"<html>\nhi"),
}
PASSING = {30: (429, "0.1"), 31: (503, "soon")}
"""Status and `Retry-After` of the first answer; the second is good."""


class Server(Loopback):
    """Answers like `vllm serve`; the first prompt id of a request chooses the fault."""

    def __init__(self, port=0):
        self.handler = Handler
        self.models, self.key, self.delay, self.refusal = MODELS, None, 0.0, None
        self.sent, self.aborted, self.seen = [], [], Counter()
        self.now = self.most = 0
        super().__init__(port)


class Handler(Answering):
    def do_GET(self):
        if (
            self.server.key
            and self.headers.get("Authorization") != f"Bearer {self.server.key}"
        ):
            return self.answer(401, {"error": "Unauthorized"})
        time.sleep(self.server.delay)
        return self.answer(200, self.server.models)

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refusal:
            return self.answer(*self.server.refusal)
        if self.path == "/inference/v1/abort_requests":
            self.server.aborted += sent["request_ids"]
            return self.answer(200, b"")
        fault = sent["token_ids"][0]
        with self.server.lock:
            self.server.sent.append(sent)
            self.server.seen[fault] += 1
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        time.sleep({SLOW: 0.05, SILENT: 3.0}.get(fault, 0))
        with self.server.lock:
            self.server.now -= 1
        if fault in FAULTS:
            return self.answer(*FAULTS[fault])
        if fault in PASSING and self.server.seen[fault] == 1:
            status, wait = PASSING[fault]
            return self.answer(status, b"later", Retry_After=wait)
        if fault == DROPPED and self.server.seen[fault] == 1:
            self.close_connection = True
            return self.connection.close()
        params = sent["sampling_params"]
        asked = params.get("logprob_token_ids", [])[
            : -2 if fault == UNWATCHED else None
        ]
        row = position(5, {i: -1.0 - i for i in (5, *asked)})
        row["top_logprobs"] = row["top_logprobs"][: max(params["logprobs"], 1)]
        count = params["max_tokens"]
        choice = {
            "token_ids": [5] * count,
            "finish_reason": "length",
            "logprobs": {"content": [row] * count},
        }
        return self.answer(200, {"choices": [choice]})


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def load(server):
    engines = []

    def loaded(**options):
        settings = {
            "vocab_size": 100,
            "backoff": 0.01,
            "retries": 2,
            "read_timeout": 30.0,
            **options,
        }
        engines.append(HTTPEngine.load(HTTPConfig(server.url, **settings)))
        return engines[-1]

    yield loaded
    for engine in engines:
        engine.close()


def ask(fault, **fields):
    return Generate((fault, 3, 4), 2, watch_ids=(7, 8), **fields)


FAILED = """
20 | status 400: bad luck
21 | status 500: bad luck
22 | status 503: bad luck
23 | status 404: bad luck
24 | not JSON
13 | no log-probability of token id 8 at position 0
"""


@pytest.mark.parametrize("fault, reason", table(FAILED))
def test_one_failure_is_one_line_and_others_finish(load, server, fault, reason):
    """Defects 8 and 9 in the last case: a watched id that does not come back fails, it is never filled in."""
    fault = int(fault)
    base, failed, lora = serve(load(), [ask(3), ask(fault), ask(4, adapter="lora")])
    for one in (base, lora):
        assert (one.watched.tolist(), one.finish) == ([[-8.0, -9.0]] * 2, Finish.BUDGET)
    assert reason in failed.reason
    assert "\n" not in failed.reason
    # only what may pass is sent again
    assert server.seen[fault] == (3 if fault == 22 else 1)
    models = {sent["token_ids"][0]: sent["model"] for sent in server.sent}
    assert models == {3: "tiny", fault: "tiny", 4: "lora"}


@pytest.mark.parametrize("fault", [*PASSING, DROPPED])
def test_passing_failures_are_repeated_under_a_fresh_id(load, server, fault):
    [result] = serve(load(), [ask(fault)])
    assert isinstance(result, Generated)
    assert len({sent["request_id"] for sent in server.sent}) == len(server.sent) == 2


def test_silence_fails_that_request_and_aborts_it_at_the_server(load, server):
    silent, fine = serve(load(read_timeout=0.5), [ask(SILENT), ask(3)])
    assert isinstance(fine, Generated)
    assert silent == Failed(f"{server.url}: no answer within 0.5 s")
    assert server.seen[SILENT] == 1
    [sent] = [sent for sent in server.sent if sent["token_ids"][0] == SILENT]
    assert server.aborted == [f"generate-tokens-{sent['request_id']}"]


def test_concurrency_is_bounded(load, server):
    assert all(
        isinstance(one, Generated)
        for one in serve(load(max_concurrency=3), [ask(SLOW) for _ in range(12)])
    )
    assert server.most == 3


def test_abort_reaches_the_server_and_nothing_comes_back(load, server):
    engine = load()
    dropped, kept = engine.submit(ask(SILENT)), engine.submit(ask(3))
    wait(lambda: server.seen[SILENT] == 1)
    engine.abort([dropped, 10**9])
    results = {}
    wait(lambda: results.update(engine.step()) or (server.aborted and kept in results))
    assert set(results) == {kept}
    assert engine.step() == []


def test_server_gone_in_the_middle_is_one_clear_line_and_coming_back_is_fine(
    load, server
):
    engine = load(retries=1)
    serve(engine, [ask(3)])
    server.stop()
    for _ in range(3):
        engine.submit(ask(3))
    expected = rf"no server at {re.escape(server.url)} after 2 attempts .*start it with `vllm serve MODEL`"
    with refused(expected):
        wait(lambda: engine.step() and False)
    assert engine.step() == []
    back = Server(server.server_address[1])
    assert isinstance(serve(engine, [ask(4)])[0], Generated)
    back.stop()


def test_api_key_from_argument_and_environment(load, server, monkeypatch):
    server.key = "secret"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(EngineError, match=r"401: the key in VLLM_API_KEY"):
        load()
    load(api_key="secret")
    monkeypatch.setenv("MY_KEY", "secret")
    load(api_key_env="MY_KEY")
    assert "secret" not in repr(HTTPConfig(server.url, api_key="secret"))


UNUSABLE = r"""
{"delay": 2.0} | http://.*/v1/models: no answer within 0\.3 s
{"models": [1, 2]} | is it a vllm serve
{"refusal": [404, "Not Found"]} | gives no log-probabilities of token ids \(status 404:
{"refusal": [403, {"error": {"message": "endpoints are disabled"}}]} | token ids \(status 403:
"""
"""The last is vLLM 0.32 unless it was started with --enable-scale-out."""


@pytest.mark.parametrize("state, said", table(UNUSABLE))
def test_servers_that_cannot_be_used(load, server, state, said):
    vars(server).update(json.loads(state))
    with refused(said):
        load(read_timeout=0.3 if "delay" in state else 30.0)


def test_closed_engine(load):
    engine = load()
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
