"""The in-process vLLM engine on a tiny Llama: what its adapter promises, and vLLM's traps that must not show."""

from __future__ import annotations

import os

import numpy as np
import pytest
from pump import generated, prompt, serve

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.vllm import VLLMConfig
from selfrag.errors import EngineError

pytest.importorskip("vllm", reason="vllm is not installed")
from selfrag.engines.vllm import VLLMEngine

pytestmark = pytest.mark.engine

CONTEXT = 1024
WATCH = (300, 7, 400, 12, 5)


@pytest.fixture
def engine(vllm_engine):
    return vllm_engine


def same(one: Generated, other: Generated) -> None:
    assert one.token_ids == other.token_ids
    assert one.finish == other.finish
    np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, atol=1e-4)
    np.testing.assert_allclose(one.watched, other.watched, atol=1e-4)


def test_all_watched_probabilities_sum_to_one(engine):
    """Every id of the vocabulary, 100 at a time: the values are log-probabilities of the whole softmax."""
    parts = [tuple(range(i, min(i + 100, 415))) for i in range(0, 415, 100)]
    results = serve(engine, [Generate(prompt(20), 1, watch_ids=part) for part in parts])
    total = sum(float(np.exp(r.watched[0]).sum()) for r in results if isinstance(r, Generated))
    assert total == pytest.approx(1.0, abs=1e-4)


def test_eos_of_one_request_does_not_end_others(engine):
    """Defect 39: hypotheses of one question stop others."""
    ended, going = serve(engine, [Generate(prompt(20), 8, allowed_ids=(2,)), Generate(prompt(20, 1), 8)])
    assert isinstance(ended, Generated)
    assert isinstance(going, Generated)
    assert ended.finish is Finish.EOS
    assert len(going.token_ids) == 8


def test_values_stay_raw_under_a_mask(engine):
    allowed = (401, 402, 403)
    free = generated(engine, Generate(prompt(20), 1, watch_ids=allowed))
    masked = generated(engine, Generate(prompt(20), 1, watch_ids=allowed, allowed_ids=allowed))
    assert masked.token_ids[0] == allowed[int(np.argmax(free.watched[0]))]
    np.testing.assert_allclose(masked.watched, free.watched, atol=1e-5)
    assert masked.token_logprobs[0] == pytest.approx(float(free.watched[0].max()), abs=1e-5)


def test_budget_and_context_are_told_apart(engine):
    """Silent shortening at the context limit (vllm-facts 3.4) is reported."""
    short, long, exact = serve(
        engine,
        [Generate(prompt(20), 3), Generate(prompt(CONTEXT - 2), 50), Generate(prompt(CONTEXT - 2), 2)],
    )
    assert isinstance(short, Generated)
    assert isinstance(long, Generated)
    assert isinstance(exact, Generated)
    assert short.finish is Finish.BUDGET
    assert long.finish is Finish.CONTEXT
    assert len(long.token_ids) == 2
    assert exact.finish is Finish.BUDGET


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Generate(prompt(CONTEXT), 5), "does not fit"),
        (Generate((), 5), "empty"),
        (Generate((3, 60_000), 5), "60000"),
        (Generate(prompt(5), 5, watch_ids=(415,)), "415"),
        (Generate(prompt(5), 5, adapter="nobody"), "nobody"),
    ],
)
def test_one_bad_request_fails_alone(engine, bad, reason):
    good, failed, other = serve(engine, [Generate(prompt(20), 4), bad, Generate(prompt(20, 1), 4)])
    assert isinstance(failed, Failed)
    assert reason in failed.reason
    assert "\n" not in failed.reason
    assert isinstance(good, Generated)
    assert isinstance(other, Generated)


def test_aborted_request_never_comes_back_and_others_finish(engine):
    requests = [Generate(prompt(20, i), 12, watch_ids=WATCH) for i in range(4)]
    alone = [generated(engine, request) for request in requests]
    tickets = [engine.submit(request) for request in requests]
    for _ in range(3):
        assert engine.step() == []
    late = engine.submit(requests[0])  # joins while others run
    engine.abort([tickets[1], 10**9])
    results = {}
    for _ in range(40):
        results.update(engine.step())
    assert set(results) == {tickets[0], tickets[2], tickets[3], late}
    for ticket, expected in ((tickets[0], alone[0]), (tickets[2], alone[2]), (tickets[3], alone[3]), (late, alone[0])):
        same(results[ticket], expected)
    assert not engine._engine.has_unfinished_requests()


@pytest.mark.parametrize("length", [40, 130, 500])
def test_cached_tokens_are_whole_blocks_of_the_prompt(engine, length):
    """Blocks of 32: vLLM's default of 128 on a CPU never finds a short instruction again."""
    request = Generate(prompt(length, length), 2)
    first, second = generated(engine, request), generated(engine, request)
    assert first.cached_tokens == 0
    assert second.cached_tokens == (length - 1) // 32 * 32
    same(first, second)


def test_candidates_share_the_prefix_of_their_question(engine):
    prefix = prompt(100, 77)
    requests = [Generate(prefix + prompt(20, i), 3) for i in range(5)]
    results = serve(engine, requests)
    assert [r.cached_tokens for r in results if isinstance(r, Generated)] == [0, 96, 96, 96, 96]


def test_ctrl_c_in_a_step_keeps_the_engine_and_forgets_half_computed_blocks(engine, monkeypatch):
    request = Generate(prompt(200, 91), 6, watch_ids=WATCH)
    engine._engine.reset_prefix_cache()
    expected = generated(engine, request)
    engine._engine.reset_prefix_cache()

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt  # after scheduling, before computing

    ticket = engine.submit(request)
    with monkeypatch.context() as patch:
        patch.setattr(engine._engine.engine_core.engine_core.model_executor, "execute_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert dict(engine.step()) == {ticket: Failed("interrupted")}
    after = generated(engine, request)
    assert after.cached_tokens == 0
    same(after, expected)


def test_it_runs_in_this_process_restores_the_environment_and_dies_in_one_clear_line(tiny_llama, monkeypatch, capfd):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    engine = VLLMEngine.load(VLLMConfig(str(tiny_llama), max_model_len=512, dtype="float32", kv_cache_gib=0.05))
    assert type(engine._engine.engine_core).__name__ == "InprocClient"
    assert engine._engine.vllm_config.cache_config.kv_cache_memory_bytes < 1 << 30
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert not {"VLLM_ENABLE_V1_MULTIPROCESSING", "LD_PRELOAD"} & set(os.environ)
    capfd.readouterr()

    def broken(*args, **kwargs):
        raise RuntimeError("out of\nmemory")

    engine.submit(Generate(prompt(20), 4))
    monkeypatch.setattr(engine._engine.engine_core.engine_core.model_executor, "execute_model", broken)
    with pytest.raises(EngineError, match=r"stopped working \(RuntimeError: out of memory\); load it again") as caught:
        engine.step()
    assert "\n" not in str(caught.value)
    for call in (engine.step, lambda: engine.submit(Generate(prompt(20), 4))):
        with pytest.raises(EngineError, match="stopped working"):
            call()
    assert capfd.readouterr().out == ""  # vLLM dumps its whole configuration otherwise
    engine.abort([0])
    engine.close()
    engine.close()


def test_too_small_a_cache_is_one_clear_line(tiny_llama):
    with pytest.raises(EngineError, match=r"vLLM cannot load .*: ValueError: .*KV cache") as caught:
        VLLMEngine.load(VLLMConfig(str(tiny_llama), dtype="float32", kv_cache_gib=0.0001))
    assert "\n" not in str(caught.value)
