"""Which number format `auto` is: by flags, by variables that hold the CPU back, and in engines that really load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval.pretrained import cpu_instructions, fast_format, number_format, saved_format

SKYLAKE = {"avx2": True, "avx512_f": True, "avx512_vnni": True, "avx512_bf16": False, "architecture": "x86_64"}
ZEN4 = SKYLAKE | {"avx512_bf16": True}
SAPPHIRE = ZEN4 | {"amx_bf16": True, "avx512_fp16": True}
HASWELL = {"avx2": True, "avx512_f": False, "architecture": "x86_64"}
GRAVITON3 = {"neon": True, "bf16": True, "architecture": "arm64"}
GRAVITON2 = {"neon": True, "bf16": False, "architecture": "arm64"}


@pytest.mark.parametrize(
    ("capabilities", "environment", "bfloat16", "float16"),
    [
        (HASWELL, {}, False, False),
        (SKYLAKE, {}, False, False),
        (ZEN4, {}, True, False),
        (SAPPHIRE, {}, True, True),
        (GRAVITON3, {}, True, False),
        (GRAVITON2, {}, False, False),
        ({}, {}, False, False),  # an older torch does not tell
        (SAPPHIRE, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, False),
        (SAPPHIRE, {"ONEDNN_MAX_CPU_ISA": "avx512_core_vnni"}, False, False),
        (SAPPHIRE, {"ATEN_CPU_CAPABILITY": "default"}, False, False),
        (ZEN4, {"ATEN_CPU_CAPABILITY": "avx2"}, False, False),
        (ZEN4, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ATEN_CPU_CAPABILITY": "avx512"}, True, False),
        (ZEN4, {"ONEDNN_MAX_CPU_ISA": "ALL"}, True, False),
    ],
)
def test_formats_go_by_flags_and_by_what_holds_the_cpu_back(
    capabilities: dict, environment: dict, bfloat16: bool, float16: bool
) -> None:
    assert cpu_instructions("bfloat16", capabilities, environment)[0] is bfloat16
    assert cpu_instructions("float16", capabilities, environment)[0] is float16


def test_the_reason_names_the_flag_or_the_variable() -> None:
    assert cpu_instructions("bfloat16", ZEN4, {})[1] == "this CPU has avx512_bf16"
    assert cpu_instructions("bfloat16", HASWELL, {})[1] == "this CPU has no bfloat16 instructions"
    said = cpu_instructions("bfloat16", ZEN4, {"ONEDNN_MAX_CPU_ISA": "AVX2"})[1]
    assert said == "ONEDNN_MAX_CPU_ISA=AVX2 allows no bfloat16 instructions"


def saved(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "bfloat16", "quantization_config": {"quant_method": "awq"}}, None),
        ({"dtype": "float8_e4m3fn"}, None),
        ({}, None),
        ({"text_config": 3}, None),
    ],
)
def test_the_saved_format_is_what_the_configuration_says(tmp_path: Path, config: dict, own: str | None) -> None:
    assert saved_format(saved(tmp_path, **config)) == own


def test_a_configuration_that_says_nothing_leaves_it_to_the_weights(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2, dtype=torch.bfloat16)}, saved(tmp_path) / "model.safetensors")
    assert saved_format(tmp_path) == "bfloat16"


@pytest.mark.parametrize("held_back", [True, False])
def test_auto_never_rounds_and_an_option_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_back: bool) -> None:
    if held_back:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    saved(tmp_path, dtype="float32")
    assert number_format("auto", tmp_path, "cpu").name == "float32"
    assert number_format("bfloat16", tmp_path, "cpu").name == "bfloat16"
    saved(tmp_path, dtype="bfloat16")
    assert number_format("auto", tmp_path, "cpu").name == ("float32" if held_back else fast_format("cpu").name)
    assert number_format("auto", tmp_path, "cuda:1").name == "bfloat16"
    assert number_format("float32", tmp_path, "cuda").name == "float32"


HELD_BACK = """
import json, sys
from pathlib import Path
from retrieval.pretrained import fast_format
from selfrag.cli.doctor import check_machine
from selfrag.cli.doctor import check_model
from selfrag.engines.select import load_engine

found = {}
for engine in json.loads(sys.argv[2]):
    loaded = load_engine(engine, sys.argv[1], max_model_len=128, **({"kv_cache_gib": 0.05} if engine == "vllm" else {}))
    model = loaded._engine.vllm_config.model_config if engine == "vllm" else loaded._model.module
    found[engine] = str(model.dtype)
    loaded.close()
found["doctor"] = {one.subject: one.detail for one in (*check_machine(), *check_model(sys.argv[1]))}["number format"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tiny_in_bfloat16(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("bfloat16")
    AutoModelForCausalLM.from_pretrained(tiny_llama, dtype="bfloat16").save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(folder)
    return folder


@pytest.mark.engine
def test_engines_load_in_what_the_cpu_is_fast_in(tiny_in_bfloat16: Path) -> None:
    """A checkpoint in bfloat16 was loaded as it was, which on such a CPU is several times slower than float32."""
    from selfrag.engines.select import choose_engine

    engines = ["transformers", *(["vllm"] if choose_engine()[0] == "vllm" else [])]
    held_back = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-c", HELD_BACK, str(tiny_in_bfloat16), json.dumps(engines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200, env=held_back)
    found = json.loads(done.stdout.splitlines()[-1])
    assert {found[engine] for engine in engines} == {"torch.float32"}
    assert found["doctor"] == "float32 (saved in bfloat16; ATEN_CPU_CAPABILITY=avx2 allows no bfloat16 instructions)"


@pytest.mark.engine
def test_here_the_engine_has_what_the_rule_says(tiny_in_bfloat16: Path) -> None:
    from selfrag.engines.select import load_engine

    engine = load_engine("transformers", tiny_in_bfloat16, max_model_len=128)
    assert str(engine._model.module.dtype) == f"torch.{fast_format('cpu').name}"
    engine.close()
