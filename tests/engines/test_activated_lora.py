"""Activated LoRA on the transformers engine: it reuses what the base model computed, and gives the numbers of PEFT."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from lora_on_the_spot import save_adapter
from pump import generated, prompt, serve

from selfrag.decoding.requests import Failed, Generate, Generated

pytestmark = pytest.mark.engine

INVOCATION = (1, 77, 78)
WATCH = (3, 4, 50, 300)
CONVERSATION = prompt(100)


@pytest.fixture(scope="module")
def adapters(tiny_llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alora")
    tokens = list(INVOCATION)
    return {
        "first": save_adapter(tiny_llama, folder / "first", seed=1, alora_invocation_tokens=tokens),
        "second": save_adapter(tiny_llama, folder / "second", seed=2, alora_invocation_tokens=tokens),
        "plain": save_adapter(tiny_llama, folder / "plain", seed=3),
    }


@pytest.fixture
def make(counting, adapters):
    return partial(counting, adapters=adapters)


def computed(passes, adapter):
    return sum(tokens for name, tokens in passes if name == adapter)


def by_peft(model_dir, adapter, ids, steps=1):
    """Greedy ids and log-probabilities of PEFT's own activated LoRA, every step a full pass over everything."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir), adapter).eval()
    rows, ids = [], list(ids)
    with torch.no_grad():
        for _ in range(steps):
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            rows.append(torch.log_softmax(logits, -1).numpy())
            ids.append(int(logits.argmax()))
    return ids[-steps:], np.stack(rows)


def test_numbers_are_those_of_peft(make, tiny_llama, adapters):
    engine, _ = make()
    ids = (*CONVERSATION, *INVOCATION, 9, 8)
    found = generated(engine, Generate(ids, 5, watch_ids=WATCH, adapter="first"))
    tokens, logprobs = by_peft(tiny_llama, adapters["first"], ids, len(found.token_ids))
    assert list(found.token_ids) == tokens
    np.testing.assert_allclose(found.watched, logprobs[:, WATCH], atol=1e-4)


def test_it_acts_from_the_last_of_two_occurrences(make, tiny_llama, adapters):
    engine, _ = make()
    early = (*CONVERSATION[:40], *INVOCATION, *CONVERSATION[40:], *INVOCATION)
    found = generated(engine, Generate(early, 1, watch_ids=WATCH, adapter="first"))
    _, logprobs = by_peft(tiny_llama, adapters["first"], early)
    np.testing.assert_allclose(found.watched, logprobs[:, WATCH], atol=1e-4)


@pytest.mark.parametrize("cache", [0, 64])
def test_adapters_of_one_wave_share_one_pass_of_the_base_model(make, cache):
    engine, passes = make(prefix_cache_mib=cache)
    wave = [Generate((*CONVERSATION, *INVOCATION), 1, watch_ids=WATCH, adapter=name) for name in ("first", "second")]
    results = serve(engine, wave)
    assert computed(passes, None) == 100
    assert computed(passes, "first") == computed(passes, "second") == 3
    assert [result.cached_tokens for result in results] == [0, 100]


def test_a_plain_adapter_shares_nothing(make):
    engine, passes = make()
    generated(engine, Generate(CONVERSATION, 1))
    result = generated(engine, Generate((*CONVERSATION, *INVOCATION), 1, adapter="plain"))
    assert result.cached_tokens == 0
    assert computed(passes, "plain") == 103


def test_mixed_batches_give_what_each_gives_alone(make):
    engine, _ = make()
    wave = [
        Generate((*CONVERSATION[:cut], *INVOCATION, *tail), 6, watch_ids=WATCH, adapter=adapter)
        for cut in (1, 30, 60, 100)
        for tail in ((), (5, 6))
        for adapter in ("first", "second", "plain", None)
    ]
    together = serve(engine, wave)
    fresh, _ = make(prefix_cache_mib=0)
    for request, result in zip(wave, together, strict=True):
        alone = generated(fresh, request)
        assert isinstance(result, Generated)
        assert result.token_ids == alone.token_ids
        np.testing.assert_allclose(result.watched, alone.watched, atol=1e-4)


def test_a_prompt_without_the_invocation_is_refused(make):
    engine, passes = make()
    bad, good = serve(
        engine, [Generate(CONVERSATION, 1, adapter="first"), Generate((*CONVERSATION, *INVOCATION), 1, adapter="first")]
    )
    assert isinstance(bad, Failed)
    assert "invocation tokens [1, 77, 78]" in bad.reason
    assert isinstance(good, Generated)
    assert all(name is None or tokens < 10 for name, tokens in passes)
