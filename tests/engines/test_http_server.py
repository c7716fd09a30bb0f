"""The HTTP engine against a real `vllm serve` on the CPU: full fidelity over the wire."""

import time

import numpy as np
import pytest
from pump import generated, prompt, serve

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.http import HTTPConfig, HTTPEngine

pytestmark = pytest.mark.engine

CONTEXT = 1024
WATCH = tuple(range(400, 415))


@pytest.fixture
def engine(vllm_server, tiny_llama):
    engine = HTTPEngine.load(HTTPConfig(vllm_server.url, model_dir=str(tiny_llama), max_concurrency=8))
    yield engine
    engine.close()


def test_the_server_tells_its_limits(engine, vllm_server, record_property):
    record_property("startup_seconds", round(vllm_server.startup_seconds, 1))
    assert engine.limits.max_model_len == CONTEXT
    assert engine.limits.vocab_size == 415
    assert engine.limits.adapters == {"extra"}


def test_every_watched_id_comes_back(engine):
    """The server cuts each position at `logprobs` entries; the last watched id must survive that."""
    rare = generated(engine, Generate(prompt(30), 6, watch_ids=WATCH))
    assert rare.watched.shape == (6, 15)
    reverse = generated(engine, Generate(prompt(30), 6, watch_ids=WATCH[::-1]))
    np.testing.assert_allclose(rare.watched, reverse.watched[:, ::-1], atol=1e-5)
    sampled = (rare.token_ids[0], *WATCH)
    doubled = generated(engine, Generate(prompt(30), 6, watch_ids=sampled))
    assert doubled.watched[0, 0] == pytest.approx(rare.token_logprobs[0], abs=1e-5)
    np.testing.assert_allclose(doubled.watched[:, 1:], rare.watched, atol=1e-5)


def test_as_many_watched_ids_as_the_server_allows(engine):
    ids = tuple(range(engine.limits.max_watch))
    assert generated(engine, Generate(prompt(30), 2, watch_ids=ids)).watched.shape == (2, 19)
    [failed] = serve(engine, [Generate(prompt(30), 2, watch_ids=tuple(range(20)))])
    assert isinstance(failed, Failed)


def test_a_choice_of_hundreds_of_which_some_begin_others(engine, tiny_llama):
    rag = SelfRAG.from_pretrained(tiny_llama, engine=engine)
    words = [f"{start}{end}" for start in range(100, 200) for end in ("", " and", " and so on")]
    answer = rag.choose("Which?", words, evidence=[Passage("d1", "Text.")], mode="always")
    assert answer.text in words
    assert len(answer.trace.nodes) == 300
    assert sum(node.likelihood for node in answer.trace.nodes) == pytest.approx(1.0)


def test_stop_eos_budget_context_and_mask(engine):
    free = generated(engine, Generate(prompt(30), 6))
    stop = free.token_ids[3]
    stopped, eos, full, masked = serve(
        engine,
        [
            Generate(prompt(30), 6, stop_ids=(stop,)),
            Generate(prompt(30), 6, allowed_ids=(2,)),
            Generate(prompt(CONTEXT - 2), 6),
            Generate(prompt(30), 1, allowed_ids=WATCH, watch_ids=WATCH),
        ],
    )
    assert isinstance(stopped, Generated)
    assert isinstance(eos, Generated)
    assert isinstance(full, Generated)
    assert isinstance(masked, Generated)
    assert stopped.finish is Finish.STOP
    assert stopped.token_ids[-1] == stop
    assert (eos.finish, eos.token_ids) == (Finish.EOS, (2,))
    assert (full.finish, len(full.token_ids)) == (Finish.CONTEXT, 2)
    assert masked.token_ids[0] == WATCH[int(masked.watched[0].argmax())]


def test_cached_tokens_are_reported(engine):
    request = Generate(prompt(100, 5), 2)
    assert generated(engine, request).cached_tokens == 0
    assert generated(engine, request).cached_tokens == 96


def test_adapter_by_name(engine):
    base, extra = serve(engine, [Generate(prompt(30), 8), Generate(prompt(30), 8, adapter="extra")])
    assert isinstance(base, Generated)
    assert isinstance(extra, Generated)
    assert base.token_ids != extra.token_ids


def test_aborted_requests_free_the_server(engine):
    tickets = [engine.submit(Generate(prompt(10, i), 240)) for i in range(8)]
    time.sleep(0.2)
    engine.abort(tickets)
    assert isinstance(generated(engine, Generate(prompt(30), 4)), Generated)
    assert engine.step() == []
