"""The HTTP engine over `/v1/completions`: a gateway lets only OpenAI's routes of a real `vllm serve` through."""

from __future__ import annotations

import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import numpy as np
import pytest
from pump import prompt, serve

from selfrag.decoding.requests import Finish, Generate, Generated
from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.engines.wire import COMPLETIONS, TOKENS
from selfrag.errors import EngineError

pytestmark = pytest.mark.engine

WATCH = tuple(range(400, 415))


class Gateway(BaseHTTPRequestHandler):
    """Passes `/v1/` on, and knows no other path; `drop` names fields that it takes out of requests."""

    target = ""
    drop: tuple[str, ...] = ()

    def do_GET(self):
        self._answer("GET", None)

    def do_POST(self):
        self._answer("POST", self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, method, content):
        status, body = 404, b'{"detail": "Not Found"}'
        if self.path.startswith("/v1/"):
            given = None if content is None else httpx.Response(200, content=content).json()
            for name in self.drop:
                given.pop(name, None) if given else None
            reply = httpx.request(method, self.target + self.path, json=given, timeout=60)
            status, body = reply.status_code, reply.content
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def gateway(vllm_server):
    started = []

    def start(*drop):
        handler = type("Handler", (Gateway,), {"target": vllm_server.url, "drop": drop})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def load(url, model, **options):
    return HTTPEngine.load(HTTPConfig(url, model_dir=str(model), max_concurrency=8, **options))


def test_both_routes_give_the_same(gateway, vllm_server, tiny_llama):
    draw = random.Random(0)
    requests = [
        Generate(
            prompt(draw.randrange(2, 60), seed) if seed % 2 else prompt(draw.randrange(2, 60)),
            draw.randrange(1, 8),
            watch_ids=WATCH if seed % 3 else (),
            stop_ids=tuple(range(seed % 5, 200, 7)) if seed % 4 == 0 else (),
            adapter="extra" if seed % 5 == 0 else None,
        )
        for seed in range(50)
    ]
    stock, direct = load(gateway(), tiny_llama), load(vllm_server.url, tiny_llama)
    assert (stock._client.wire, direct._client.wire) == (COMPLETIONS, TOKENS)
    assert stock.limits == direct.limits
    ours, theirs = serve(stock, requests), serve(direct, requests)
    finishes = set()
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one, Generated)
        assert isinstance(other, Generated)
        assert (one.token_ids, one.finish) == (other.token_ids, other.finish)
        np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, atol=1e-3)
        np.testing.assert_allclose(one.watched, other.watched, atol=1e-3)
        finishes.add(one.finish)
    assert {Finish.STOP, Finish.BUDGET} <= finishes
    masked = Generate(prompt(30), 1, allowed_ids=WATCH, watch_ids=WATCH)
    [one], [other] = serve(stock, [masked]), serve(direct, [masked])
    assert (one.token_ids, one.finish) == (other.token_ids, other.finish)
    stock.close()
    direct.close()


@pytest.mark.parametrize("lost", ["logprob_token_ids", "return_token_ids", "return_tokens_as_token_ids", "logprobs"])
def test_a_gateway_that_drops_a_field_is_refused_before_anything_is_asked(gateway, tiny_llama, lost):
    with pytest.raises(EngineError, match="gives no log-probabilities of token ids"):
        load(gateway(lost), tiny_llama)


def test_the_key_goes_through_and_is_in_no_message(gateway, tiny_llama, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "very-secret")
    with pytest.raises(EngineError) as found:
        load(gateway("logprob_token_ids"), tiny_llama)
    assert "very-secret" not in str(found.value)
