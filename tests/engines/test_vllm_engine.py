"""The in-process vLLM engine on a tiny Llama: what its adapter promises, and vLLM's traps that must not show."""

from __future__ import annotations

import logging
import os
from unittest.mock import MagicMock

import numpy as np
import pytest
from pump import generated, prompt, serve

from selfrag.decoding.requests import Failed, Finish, Generate, Generated
from selfrag.engines.vllm import VLLMConfig
from selfrag.errors import EngineError

pytest.importorskip("vllm", reason="vllm is not installed")
from selfrag.engines.vllm import VLLMEngine, quiet_import

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


def test_eos_of_one_request_does_not_end_others(engine):
    """Defect 39: hypotheses of one question stop others."""
    ended, going = serve(engine, [Generate(prompt(20), 8, allowed_ids=(2,)), Generate(prompt(20, 1), 8)])
    assert isinstance(ended, Generated)
    assert isinstance(going, Generated)
    assert ended.finish is Finish.EOS
    assert len(going.token_ids) == 8


def test_bad_requests_fail_alone(engine):
    bad = [Generate(prompt(CONTEXT), 5), Generate(prompt(5), 5, watch_ids=(415,))]
    good, *failed, other = serve(engine, [Generate(prompt(20), 4), *bad, Generate(prompt(20, 1), 4)])
    for one, reason in zip(failed, ("does not fit", "415"), strict=True):
        assert isinstance(one, Failed)
        assert reason in one.reason
        assert "\n" not in one.reason
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


def test_cached_tokens_are_whole_blocks_of_the_prompt(engine):
    """Blocks of 32: vLLM's default of 128 on a CPU never finds a short instruction again."""
    request = Generate(prompt(130, 130), 2)
    first, second = generated(engine, request), generated(engine, request)
    assert first.cached_tokens == 0
    assert second.cached_tokens == 128
    same(first, second)


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


def test_a_users_log_file_stays_open(tmp_path):
    """vLLM's default configuration closes all handlers, and a file that was opened for writing stays closed."""
    from vllm.config.logging import LoggingConfig
    from vllm.logger import configure_logging

    handler = logging.FileHandler(tmp_path / "mine.log", mode="w")
    with quiet_import():
        configure_logging(LoggingConfig())
    handler.handle(logging.LogRecord("mine", logging.INFO, "", 0, "still heard", None, None))
    handler.close()
    assert (tmp_path / "mine.log").read_text() == "still heard\n"


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


def test_it_closes_after_the_groups_of_the_process_are_gone():
    """Training, or another engine that was closed, takes down the process groups that all of vLLM shares."""
    vllm = MagicMock()
    vllm.vllm_config.model_config.max_model_len = 8
    vllm.vllm_config.model_config.get_vocab_size.return_value = 8
    vllm.engine_core.shutdown.side_effect = ValueError("Invalid process group specified")
    engine = VLLMEngine(vllm)
    engine.close()
    vllm.engine_core.shutdown.assert_called_once()
    with pytest.raises(EngineError, match="closed"):
        engine.submit(Generate(prompt(5), 1))
