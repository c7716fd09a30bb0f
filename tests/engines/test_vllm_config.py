"""What a `VLLMConfig` means to vLLM, without vLLM."""

from pathlib import Path

import pytest

from retrieval.pretrained import cpu_instructions
from selfrag.engines.adapters import Adapter
from selfrag.engines.vllm import VLLMConfig, build_environment, check_model, engine_arguments, spare_llvmlite
from selfrag.errors import EngineError


def test_cpu_gets_small_blocks_an_explicit_cache_and_no_compilation():
    arguments = engine_arguments(VLLMConfig("m"), [], cpu=True)
    assert arguments["block_size"] == 32
    assert arguments["kv_cache_memory_bytes"] == 2 << 30
    assert arguments["enforce_eager"] is True
    assert arguments["enable_prefix_caching"] is True
    assert arguments["max_num_seqs"] == 64
    assert "enable_lora" not in arguments
    assert "max_model_len" not in arguments


def test_gpu_keeps_the_defaults_of_vllm():
    arguments = engine_arguments(VLLMConfig("m", tensor_parallel_size=2), [], cpu=False)
    assert arguments["enforce_eager"] is False
    assert arguments["tensor_parallel_size"] == 2
    assert not {"block_size", "kv_cache_memory_bytes", "max_num_seqs"} & set(arguments)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in build_environment(cpu=False, kv_cache_is_ours=True)


def test_own_arguments_win():
    config = VLLMConfig(
        "m", enforce_eager=False, kv_cache_gib=0.5, engine_args={"block_size": 128, "quantization": "x"}
    )
    arguments = engine_arguments(config, [], cpu=True)
    assert arguments["block_size"] == 128
    assert arguments["quantization"] == "x"
    assert arguments["enforce_eager"] is False
    assert arguments["kv_cache_memory_bytes"] == 1 << 29


def test_adapters_decide_rank_and_slots():
    adapters = [Adapter(f"a{i}", Path("x"), rank) for i, rank in enumerate((4, 12, 16, *[2] * 9))]
    arguments = engine_arguments(VLLMConfig("m"), adapters, cpu=False)
    assert arguments["enable_lora"] is True
    assert arguments["max_lora_rank"] == 16
    assert arguments["max_loras"] == 8
    assert arguments["max_cpu_loras"] == 12
    assert engine_arguments(VLLMConfig("m"), adapters, cpu=True)["max_loras"] == 13  # one stays empty


def test_a_cache_size_in_the_environment_stands_unless_the_config_names_one():
    assert "VLLM_CPU_KVCACHE_SPACE" not in build_environment(cpu=True, kv_cache_is_ours=False)
    assert build_environment(cpu=True, kv_cache_is_ours=True)["VLLM_CPU_KVCACHE_SPACE"] is None


def test_models_that_are_none(tmp_path):
    check_model("selfrag/selfrag_llama2_7b")
    check_model("gpt2")
    for name in (str(tmp_path / "missing"), "./missing", "a/b/c"):
        with pytest.raises(EngineError, match="not a directory"):
            check_model(name)
    with pytest.raises(EngineError, match=r"config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    check_model(str(tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_auto_keeps_what_the_checkpoint_was_saved_in(tmp_path, dtype):
    """vLLM's own `auto` turns float32 into 16 bits; ours means the same for every engine."""
    (tmp_path / "config.json").write_text(f'{{"model_type": "llama", "dtype": "{dtype}"}}')
    config = VLLMConfig(str(tmp_path))
    assert engine_arguments(config, [], cpu=False)["dtype"] == {"float32": "float32"}.get(dtype, "auto")
    assert engine_arguments(config, [], cpu=True)["dtype"] == cpu_format(dtype)
    assert engine_arguments(config, [], cpu=True)["trust_remote_code"] is False


def cpu_format(dtype):
    return dtype if dtype == "float32" or cpu_instructions(dtype)[0] else "float32"


def test_a_scan_of_all_modules_as_vllm_makes_it_survives_llvmlite():
    ffi = pytest.importorskip("llvmlite.binding.ffi", reason="llvmlite is not installed")
    spare_llvmlite()
    for value in vars(ffi).values():
        if hasattr(value, "__dict__"):
            vars(value).get("kernel")
    assert ffi.lib.LLVMPY_GetVersionInfo() > 0
