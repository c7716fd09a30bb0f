"""Requests with `report`: the beginning comes first, the whole result is that of any other request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pump import generated, prompt

from selfrag.decoding.requests import Finish, Generate, Generated
from selfrag.engines.select import load_engine

pytestmark = pytest.mark.engine

REQUEST = Generate(prompt(70, 1), 12, watch_ids=(5, 400, 414))
OPTIONS = {"transformers": {"max_batch": 8}, "vllm": {"kv_cache_gib": 0.05, "max_num_seqs": 8}}


@pytest.fixture(scope="module", params=OPTIONS)
def engine(request: pytest.FixtureRequest, tiny_llama: Any) -> Iterator[Any]:
    if request.param == "vllm":
        pytest.importorskip("vllm", reason="vllm is not installed")
    engine = load_engine(request.param, tiny_llama, dtype="float32", max_model_len=256, **OPTIONS[request.param])
    yield engine
    engine.close()


def first_news(engine: Any, request: Generate) -> tuple[int, Generated]:
    ticket = engine.submit(request)
    while True:
        for served, result in engine.step():
            if served == ticket:
                return ticket, result


def test_the_beginning_comes_before_the_whole(engine: Any) -> None:
    ticket, begun = first_news(engine, replace(REQUEST, report=True))
    assert begun.finish is Finish.BEGUN
    done: list[Any] = []
    while not done:
        done = [result for served, result in engine.step() if served == ticket]
    (whole,) = done
    assert len(whole.token_ids) == 12
    assert begun.token_ids == whole.token_ids[: len(begun.token_ids)]
    assert begun.token_logprobs == whole.token_logprobs[: len(begun.token_ids)]
    np.testing.assert_array_equal(begun.watched, whole.watched[: len(begun.token_ids)])
    plain = generated(engine, REQUEST)
    assert (whole.token_ids, whole.finish) == (plain.token_ids, plain.finish)
    np.testing.assert_allclose(whole.watched, plain.watched, atol=1e-4)


def test_a_result_of_one_token_comes_once(engine: Any) -> None:
    _, result = first_news(engine, replace(REQUEST, max_tokens=1, report=True))
    assert result.finish is Finish.BUDGET


def test_what_was_given_up_can_be_asked_for_again_without_its_prompt_being_computed(engine: Any) -> None:
    fresh = replace(REQUEST, prompt_ids=prompt(90, 7), report=True)
    ticket, begun = first_news(engine, fresh)
    assert begun.finish is Finish.BEGUN
    engine.abort([ticket])
    again = generated(engine, replace(fresh, report=False))
    assert again.token_ids[:1] == begun.token_ids[:1]
    assert again.cached_tokens >= 64
