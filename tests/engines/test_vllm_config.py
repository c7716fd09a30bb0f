"""What vLLM is told and which adapters it can serve, without vLLM; a machine without a compiler."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from json_files import table
from lora_on_the_spot import save_adapter
from refusals import refused

from selfrag.common.errors import EngineError
from selfrag.common.pretrained import cpu_instructions
from selfrag.engines import vllm
from selfrag.engines.adapters import VLLMAdapter, read_adapter, unsupported
from selfrag.engines.base import check_model
from selfrag.engines.vllm import (
    VLLMConfig,
    build_environment,
    engine_arguments,
    multiply_by_groups,
)
from selfrag.reflection.requests import Generate

OWN = {"block_size": 128, "quantization": "x"}
ADAPTERS = [
    VLLMAdapter(f"a{i}", Path("x"), rank)
    for i, rank in enumerate((4, 12, 16, *[2] * 9))
]
SMALL = {
    "block_size": 32,
    "kv_cache_memory_bytes": 2 << 30,
    "enforce_eager": True,
    "max_num_seqs": 64,
}
LORA = {"enable_lora": True, "max_lora_rank": 16, "max_loras": 8, "max_cpu_loras": 12}


@pytest.mark.parametrize(
    "config, adapters, cpu, wanted, absent",
    [
        (
            {},
            [],
            True,
            SMALL | {"enable_prefix_caching": True},
            {"enable_lora", "max_model_len"},
        ),
        (
            {"tensor_parallel_size": 2},
            [],
            False,
            {"enforce_eager": False, "tensor_parallel_size": 2},
            SMALL,
        ),
        ({"kv_cache_gib": 0.5}, [], True, {"kv_cache_memory_bytes": 1 << 29}, ()),
        (
            {"enforce_eager": False, "engine_args": OWN},
            [],
            True,
            OWN | {"enforce_eager": False},
            (),
        ),
        ({}, ADAPTERS, False, LORA, ()),
        # one stays empty
        ({}, ADAPTERS, True, LORA | {"max_loras": 13, "max_cpu_loras": 13}, ()),
    ],
)
def test_arguments(config, adapters, cpu, wanted, absent):
    """On a CPU small blocks, an explicit cache and no compilation; on a GPU the defaults of vLLM."""
    arguments = engine_arguments(VLLMConfig("m", **config), adapters, cpu=cpu)
    assert arguments | wanted == arguments
    assert not set(absent) - set(wanted) & set(arguments)


def test_environment():
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in build_environment(
        cpu=False, kv_cache_is_ours=True
    )
    # A cache size in the environment stands unless the configuration names one.
    assert "VLLM_CPU_KVCACHE_SPACE" not in build_environment(
        cpu=True, kv_cache_is_ours=False
    )
    assert (
        build_environment(cpu=True, kv_cache_is_ours=True)["VLLM_CPU_KVCACHE_SPACE"]
        is None
    )


ENDS = """
length | 11 | 2 | false | budget
length | 11 | 3 | false | context
stop | 11 | 3 | false | stop
stop | 11 | 3 | true | eos
stop | 12 | 3 | false | eos
"""
"""The last is a second EOS of the model."""


@pytest.mark.parametrize("reason, last, count, eos, end", table(ENDS))
def test_how_it_ended(reason, last, count, eos, end):
    request = Generate((5,), int(count), stop_ids=(11,))
    ended = vllm.finish(request, [8, int(last)], reason, eos=eos == "true")
    assert ended == end


@pytest.mark.parametrize(
    "name, bad",
    [
        ("kv_cache_gib", 0),
        ("max_model_len", 0),
        ("max_num_seqs", 0),
        ("gpu_memory_utilization", 1.5),
        ("dtype", "int8"),
    ],
)
def test_senseless_settings(name, bad):
    with refused(f"{name}={bad!r}"):
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
def test_auto_keeps_what_the_checkpoint_was_saved_in_on_a_cpu(tmp_path, dtype):
    """On a GPU vLLM's own `auto` turns float32 into 16 bits, as the transformers engine does."""
    (tmp_path / "config.json").write_text(
        f'{{"model_type": "llama", "dtype": "{dtype}"}}'
    )
    config = VLLMConfig(str(tmp_path))
    on_cpu = dtype if dtype == "float32" or cpu_instructions(dtype)[0] else "float32"
    assert engine_arguments(config, [], cpu=False)["dtype"] == "auto"
    assert engine_arguments(config, [], cpu=True)["dtype"] == on_cpu
    assert engine_arguments(config, [], cpu=True)["trust_remote_code"] is False


def test_a_scan_of_all_modules_as_vllm_makes_it_survives_llvmlite():
    ffi = pytest.importorskip(
        "llvmlite.binding.ffi", reason="llvmlite is not installed"
    )
    vllm.spare_llvmlite()
    for value in vars(ffi).values():
        if hasattr(value, "__dict__"):
            vars(value).get("kernel")
    assert ffi.lib.LLVMPY_GetVersionInfo() > 0


UNSERVED = """
{"peft_type": "PREFIX_TUNING"} | PREFIX_TUNING
{"modules_to_save": ["embed_tokens", "lm_head"]} | whole modules
{"trainable_token_indices": [401, 402]} | trained token rows
{"use_qalora": true} | QALoRA
{"use_dora": true} | DoRA
{"bias": "lora_only"} | biases
{"lora_bias": true} | biases
{"r": 600} | rank 600
{"alora_invocation_tokens": [3, 4]} | aLoRA
{"use_bdlora": {"x": 1}} | BD-LoRA
{"layer_replication": [[0, 2]]} | replicates
{"init_lora_weights": "pissa_niter_16"} | pissa_niter_16
{"rank_pattern": {"q_proj": 1024}} | rank 1024
{"r": null} | rank 0
"""


@pytest.mark.parametrize("config, reason", table(UNSERVED))
def test_configurations_that_vllm_cannot_serve(config, reason):
    assert reason in (unsupported({"r": 8} | json.loads(config)) or "")


def test_missing_and_broken_files(tiny_llama, tmp_path):
    path = save_adapter(tiny_llama, tmp_path / "a")
    assert read_adapter("mine", path) == VLLMAdapter("mine", path, 4)
    # PEFT saves the whole embedding with an adapter on it; vLLM would drop that copy silently.
    whole = save_adapter(
        tiny_llama, tmp_path / "whole", target_modules=["q_proj", "embed_tokens"]
    )
    with pytest.raises(EngineError, match=r"adapter 'mine' .*beside the LoRA pairs"):
        read_adapter("mine", whole)
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


def test_a_worker_without_adapters_or_of_another_make_stays_as_it_is():
    assert multiply_by_groups(SimpleNamespace(model_runner=SimpleNamespace())) == 0
    manager = SimpleNamespace(
        punica_wrapper_mapping={"language": SimpleNamespace(token_lora_indices=None)}
    )
    runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
    assert multiply_by_groups(SimpleNamespace(model_runner=runner)) == 0


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
from selfrag.reflection.requests import Generate
from selfrag.reflection.requests import ask
from selfrag.runtime import finish
from selfrag.engines.vllm import VLLMConfig, VLLMEngine
engine = VLLMEngine.load(VLLMConfig(sys.argv[1], max_model_len=64, kv_cache_gib=0.05))
print(finish(ask([Generate((3, 4, 5), 1, watch_ids=(7, 8))]), engine)[0].watched.shape)
"""


@pytest.mark.engine
@pytest.mark.slow
def test_log_probabilities_without_a_compiler(tiny_llama, tmp_path, process):
    pytest.importorskip("vllm", reason="vllm is not installed")
    hidden = {
        "CXX": str(tmp_path / "no-such-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    environment = os.environ | hidden
    done = process(sys.executable, "-c", SCRIPT, tiny_llama, env=environment)
    assert (done.returncode, done.stdout) == (0, "(1, 2)\n"), done.stderr[-2000:]


def test_a_deterministic_engine_computes_each_request_alone_or_by_kernels_that_do_not_depend_on_a_batch():
    config = VLLMConfig("m", deterministic=True, dtype="float32")
    alone = engine_arguments(config, [], cpu=True)
    assert (alone["max_num_seqs"], alone["enable_prefix_caching"]) == (1, False)
    assert "max_num_seqs" not in engine_arguments(config, [], cpu=False)
    assert (
        build_environment(cpu=False, kv_cache_is_ours=False, deterministic=True)[
            "VLLM_BATCH_INVARIANT"
        ]
        == "1"
    )
