"""What vLLM is told and which adapters it can serve, without vLLM; its LoRA products; a machine without a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lora_on_the_spot import save_adapter

from retrieval.pretrained import cpu_instructions
from selfrag.engines import vllm
from selfrag.engines.adapters import Adapter, read_adapter, unsupported
from selfrag.engines.vllm import VLLMConfig, build_environment, check_model, engine_arguments, multiply_by_groups
from selfrag.errors import EngineError, UserError


def test_cpu_gets_small_blocks_an_explicit_cache_and_no_compilation():
    arguments = engine_arguments(VLLMConfig("m"), [], cpu=True)
    assert arguments["block_size"] == 32
    assert arguments["kv_cache_memory_bytes"] == 2 << 30
    assert arguments["enforce_eager"] is True
    assert arguments["enable_prefix_caching"] is True
    assert arguments["max_num_seqs"] == 64
    assert not {"enable_lora", "max_model_len"} & set(arguments)
    # A cache size in the environment stands unless the configuration names one.
    assert "VLLM_CPU_KVCACHE_SPACE" not in build_environment(cpu=True, kv_cache_is_ours=False)
    assert build_environment(cpu=True, kv_cache_is_ours=True)["VLLM_CPU_KVCACHE_SPACE"] is None


def test_gpu_keeps_the_defaults_of_vllm():
    arguments = engine_arguments(VLLMConfig("m", tensor_parallel_size=2), [], cpu=False)
    assert (arguments["enforce_eager"], arguments["tensor_parallel_size"]) == (False, 2)
    assert not {"block_size", "kv_cache_memory_bytes", "max_num_seqs"} & set(arguments)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in build_environment(cpu=False, kv_cache_is_ours=True)


def test_own_arguments_win():
    own = {"block_size": 128, "quantization": "x"}
    arguments = engine_arguments(VLLMConfig("m", enforce_eager=False, kv_cache_gib=0.5, engine_args=own), [], cpu=True)
    wanted = own | {"enforce_eager": False, "kv_cache_memory_bytes": 1 << 29}
    assert {name: arguments[name] for name in wanted} == wanted


def test_adapters_decide_rank_and_slots():
    adapters = [Adapter(f"a{i}", Path("x"), rank) for i, rank in enumerate((4, 12, 16, *[2] * 9))]
    arguments = engine_arguments(VLLMConfig("m"), adapters, cpu=False)
    wanted = {"enable_lora": True, "max_lora_rank": 16, "max_loras": 8, "max_cpu_loras": 12}
    assert {name: arguments[name] for name in wanted} == wanted
    assert engine_arguments(VLLMConfig("m"), adapters, cpu=True)["max_loras"] == 13  # one stays empty


@pytest.mark.parametrize(
    ("name", "bad"), [("kv_cache_gib", 0), ("max_model_len", 0), ("max_num_seqs", 0), ("gpu_memory_utilization", 1.5)]
)
def test_senseless_settings(name, bad):
    with pytest.raises(UserError, match=f"{name}={bad}"):
        VLLMConfig("m", **{name: bad})


def test_models_that_are_none(tmp_path):
    for name in ("selfrag/selfrag_llama2_7b", "gpt2"):
        check_model(name)
    for name in (str(tmp_path / "missing"), "./missing", "a/b/c"):
        with pytest.raises(EngineError, match="not a directory"):
            check_model(name)
    with pytest.raises(EngineError, match=r"config\.json"):
        check_model(str(tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_auto_keeps_what_the_checkpoint_was_saved_in(tmp_path, dtype):
    """vLLM's own `auto` turns float32 into 16 bits; ours means the same for every engine."""
    (tmp_path / "config.json").write_text(f'{{"model_type": "llama", "dtype": "{dtype}"}}')
    config = VLLMConfig(str(tmp_path))
    on_cpu = dtype if dtype == "float32" or cpu_instructions(dtype)[0] else "float32"
    assert engine_arguments(config, [], cpu=False)["dtype"] == {"float32": "float32"}.get(dtype, "auto")
    assert engine_arguments(config, [], cpu=True)["dtype"] == on_cpu
    assert engine_arguments(config, [], cpu=True)["trust_remote_code"] is False


def test_a_scan_of_all_modules_as_vllm_makes_it_survives_llvmlite():
    ffi = pytest.importorskip("llvmlite.binding.ffi", reason="llvmlite is not installed")
    vllm.spare_llvmlite()
    for value in vars(ffi).values():
        if hasattr(value, "__dict__"):
            vars(value).get("kernel")
    assert ffi.lib.LLVMPY_GetVersionInfo() > 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"modules_to_save": ["embed_tokens", "lm_head"]}, "whole modules"),
        ({"trainable_token_indices": [401, 402]}, "trained token rows"),
        # PEFT saves the whole embedding with an adapter on it; vLLM would drop that copy silently
        ({"target_modules": ["q_proj", "embed_tokens"]}, "beside the LoRA pairs"),
    ],
)
def test_adapters_that_peft_writes_and_vllm_cannot_serve(tiny_llama, tmp_path, settings, reason):
    path = save_adapter(tiny_llama, tmp_path / "adapter", **settings)
    with pytest.raises(EngineError, match=f"adapter 'mine' .*{reason}") as caught:
        read_adapter("mine", path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING"),
        ({"use_qalora": True}, "QALoRA"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"r": 600}, "rank 600"),
        ({"alora_invocation_tokens": [3, 4]}, "aLoRA"),
        ({"use_bdlora": {"x": 1}}, "BD-LoRA"),
        ({"layer_replication": [[0, 2]]}, "replicates"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa_niter_16"),
        ({"rank_pattern": {"q_proj": 1024}}, "rank 1024"),
        ({"r": None}, "rank 0"),
    ],
)
def test_configurations_that_vllm_cannot_serve(config, reason):
    assert reason in (unsupported({"r": 8} | config) or "")


def test_missing_and_broken_files(tiny_llama, tmp_path):
    path = save_adapter(tiny_llama, tmp_path / "a")
    assert read_adapter("mine", path) == Adapter("mine", path, 4)
    weights, config = path / "adapter_model.safetensors", path / "adapter_config.json"
    for file, content, said in (
        (weights, weights.read_bytes()[:50], "cannot be read"),
        (weights, None, "is missing"),
        (config, b"{", "not JSON"),
        (config, json.dumps([1]).encode(), "not a JSON object"),
        (config, None, r"adapter_config\.json is missing"),
    ):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(EngineError, match=said):
            read_adapter("mine", path)


# LoRA products by groups: the numbers of vLLM's own operators, token by token, on adapters mixed in a batch.

RANK, WIDE, OUT = 2, 5, 4


def worker(*wrappers: object) -> SimpleNamespace:
    mapping = dict(enumerate(wrappers))
    manager = SimpleNamespace(_adapter_manager=SimpleNamespace(punica_wrapper_mapping=mapping))
    return SimpleNamespace(model_runner=SimpleNamespace(lora_manager=manager))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-1, 1), min_size=1, max_size=9), st.integers(0, 99), st.booleans())
def test_products_are_those_of_every_token_alone(indices, seed, add):
    wrapper = SimpleNamespace(token_lora_indices=torch.tensor(indices), _apply_shrink=None, _apply_expand=None)
    assert multiply_by_groups(worker(wrapper, wrapper)) == 1
    random = torch.Generator().manual_seed(seed)
    # Three slots, of which vLLM leaves the last one empty.
    a, b = torch.randn(3, 1, RANK, WIDE, generator=random), torch.randn(3, 1, OUT, RANK, generator=random)
    a[2] = b[2] = 0
    x = torch.randn(len(indices), WIDE, generator=random)
    between, y = torch.zeros(len(indices), RANK), torch.ones(len(indices), OUT + 2)
    wrapper._apply_shrink(between, x, a, 0.5)
    torch.testing.assert_close(between, torch.stack([0.5 * a[i, 0] @ row for i, row in zip(indices, x, strict=True)]))
    wrapper._apply_expand(y, between, b, 1, OUT, add)
    products = torch.stack([b[i, 0] @ row for i, row in zip(indices, between, strict=True)])
    torch.testing.assert_close(y[:, 1:-1], products + (1 if add else 0))
    assert (y[:, [0, -1]] == 1).all()


def test_a_worker_without_adapters_or_of_another_make_stays_as_it_is():
    assert multiply_by_groups(SimpleNamespace(model_runner=SimpleNamespace())) == 0
    assert multiply_by_groups(worker(SimpleNamespace(token_lora_indices=None))) == 0


def test_a_missing_compiler_and_missing_headers_are_found(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", sys.executable)  # any program
    monkeypatch.setattr(vllm.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert not vllm.has_compiler()
    (tmp_path / "Python.h").touch()
    assert vllm.has_compiler()
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert not vllm.has_compiler()


SCRIPT = """
import sys
from selfrag.decoding.requests import Generate
from selfrag.engines.base import serve
from selfrag.engines.vllm import VLLMConfig, VLLMEngine
engine = VLLMEngine.load(VLLMConfig(sys.argv[1], max_model_len=64, kv_cache_gib=0.05))
print(serve(engine, [Generate((3, 4, 5), 1, watch_ids=(7, 8))])[0].watched.shape)
"""


@pytest.mark.engine
@pytest.mark.slow
def test_log_probabilities_without_a_compiler(tiny_llama, tmp_path):
    pytest.importorskip("vllm", reason="vllm is not installed")
    hidden = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", SCRIPT, str(tiny_llama)]
    done = subprocess.run(command, env=os.environ | hidden, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "(1, 2)\n"), done.stderr[-2000:]
