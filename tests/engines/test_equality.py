"""The three real engines give the same answers: same greedy tokens and ends, watched log-probabilities within 1e-3."""

from __future__ import annotations

import numpy as np
import pytest
from pump import prompt, serve

from selfrag.decoding.requests import Generate, Generated
from selfrag.engines.select import load_engine

pytestmark = pytest.mark.engine

CONTEXT = 1024
TOLERANCE = 1e-3
REFLECTION = tuple(range(400, 415))
"""Ids of the 15 reflection tokens of `tiny_llama`."""

REQUESTS = [
    *(Generate(prompt(length, length), 12, watch_ids=REFLECTION) for length in (1, 5, 33, 64, 130, 200)),
    *(Generate(prompt(70, 1) + prompt(8, own), 10, watch_ids=REFLECTION) for own in range(2, 7)),
    *(Generate(prompt(40, start), 40, stop_ids=tuple(range(3, 100)), watch_ids=REFLECTION) for start in range(20, 24)),
    Generate(prompt(40, 30), 6, allowed_ids=REFLECTION, watch_ids=REFLECTION),
    Generate(prompt(40, 31), 6, allowed_ids=(2,), watch_ids=REFLECTION),
    Generate(prompt(CONTEXT - 4, 32), 50, watch_ids=REFLECTION),
    Generate(prompt(40, 33), 8),
    Generate(prompt(40, 34), 8, watch_ids=(414, 3), adapter="extra"),
]


@pytest.fixture(scope="module")
def answers(tiny_llama, lora_adapter):
    """Answers of an engine to `REQUESTS`, twice: on a cold and on a warm prefix cache."""

    def ask(name, **options):
        engine = load_engine(name, tiny_llama, **options)
        rounds = serve(engine, REQUESTS), serve(engine, REQUESTS)
        engine.close()
        return rounds

    def of(name, url=None):
        if name not in found:
            local = {"dtype": "float32", "max_model_len": CONTEXT, "adapters": {"extra": str(lora_adapter)}}
            options = {
                "vllm": {**local, "kv_cache_gib": 0.05, "max_num_seqs": 8},
                "transformers": {**local, "max_batch": 8},
                "http": {"url": url},
            }[name]
            found[name] = ask(name, **options)
        return found[name]

    found: dict = {}
    return of


def compare(one, other):
    for request, a, b in zip(REQUESTS, one, other, strict=True):
        assert isinstance(a, Generated), (a, request)
        assert isinstance(b, Generated), (b, request)
        assert a.token_ids == b.token_ids, request
        assert a.finish == b.finish, request
        assert a.watched.shape == b.watched.shape
        np.testing.assert_allclose(a.watched, b.watched, atol=TOLERANCE)
        np.testing.assert_allclose(a.token_logprobs, b.token_logprobs, atol=TOLERANCE)


def test_the_requests_end_in_every_way(answers):
    assert {result.finish for result in answers("transformers")[0]} == {"stop", "eos", "budget", "context"}


def test_vllm_equals_transformers(answers):
    pytest.importorskip("vllm", reason="vllm is not installed")
    compare(answers("vllm")[0], answers("transformers")[0])


def test_http_equals_transformers(answers, vllm_server):
    compare(answers("http", vllm_server.url)[0], answers("transformers")[0])


@pytest.mark.parametrize("name", ["vllm", "transformers"])
def test_a_warm_cache_changes_nothing(answers, name):
    if name == "vllm":
        pytest.importorskip("vllm", reason="vllm is not installed")
    cold, warm = answers(name)
    compare(warm, cold)
    assert sum(result.cached_tokens for result in warm) > sum(result.cached_tokens for result in cold)
