"""Which number format `auto` is: by flags, by variables that hold the CPU back, and in engines that really load."""

from contextlib import closing

import pytest
from json_files import write_json

from selfrag.cli.doctor import check_model
from selfrag.common.pretrained import (
    cpu_instructions,
    fast_format,
    number_format,
    saved_format,
)
from selfrag.engines import load_engine

SKYLAKE = {
    "avx2": True,
    "avx512_f": True,
    "avx512_vnni": True,
    "avx512_bf16": False,
    "architecture": "x86_64",
}


ZEN4 = SKYLAKE | {"avx512_bf16": True}


SAPPHIRE = ZEN4 | {"amx_bf16": True, "avx512_fp16": True}


HASWELL = {"avx2": True, "avx512_f": False, "architecture": "x86_64"}


@pytest.mark.parametrize(
    "capabilities, environment, bfloat16, float16",
    [
        (HASWELL, {}, False, False),
        (ZEN4, {}, True, False),
        (SAPPHIRE, {}, True, True),
        ({}, {}, False, False),  # an older torch does not tell
        (SAPPHIRE, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, False),
        (
            ZEN4,
            {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ATEN_CPU_CAPABILITY": "avx512"},
            True,
            False,
        ),
    ],
)
def test_formats_go_by_flags_and_by_what_holds_the_cpu_back(
    capabilities, environment, bfloat16, float16
):
    assert cpu_instructions("bfloat16", capabilities, environment)[0] is bfloat16
    assert cpu_instructions("float16", capabilities, environment)[0] is float16


def saved(folder, **config):
    write_json(folder / "config.json", {"model_type": "llama", **config})
    return folder


@pytest.mark.parametrize(
    "config, own",
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "bfloat16", "quantization_config": {"quant_method": "awq"}}, None),
        ({"dtype": "float8_e4m3fn"}, None),
        ({}, None),
    ],
)
def test_the_saved_format_is_what_the_configuration_says(tmp_path, config, own):
    assert saved_format(saved(tmp_path, **config)) == own


def test_a_configuration_that_says_nothing_leaves_it_to_the_weights(tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file(
        {"a": torch.zeros(2, dtype=torch.bfloat16)},
        saved(tmp_path) / "model.safetensors",
    )
    assert saved_format(tmp_path) == "bfloat16"


@pytest.mark.parametrize("held_back", [True, False])
def test_auto_rounds_float32_on_a_gpu_alone_and_an_option_wins(
    tmp_path, monkeypatch, held_back
):
    if held_back:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    saved(tmp_path, dtype="float32")
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    assert number_format("auto", tmp_path, "cpu").name == "float32"
    assert number_format("auto", tmp_path, "cuda").name == "bfloat16"
    assert number_format("bfloat16", tmp_path, "cpu").name == "bfloat16"
    saved(tmp_path, dtype="bfloat16")
    assert number_format("auto", tmp_path, "cpu").name == (
        "float32" if held_back else fast_format("cpu").name
    )
    assert number_format("auto", tmp_path, "cuda:1").name == "bfloat16"
    assert number_format("float32", tmp_path, "cuda").name == "float32"


@pytest.mark.engine
@pytest.mark.parametrize("held_back", [True, False])
def test_an_engine_loads_in_what_the_cpu_is_fast_in(
    tiny_llama, tmp_path, monkeypatch, held_back
):
    """A checkpoint in bfloat16 was loaded as it was, which on such a CPU is several times slower than float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(tiny_llama, dtype="bfloat16").save_pretrained(
        tmp_path
    )
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(tmp_path)
    if held_back:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    with closing(load_engine("transformers", tmp_path, max_model_len=128)) as engine:
        assert (
            str(engine._model.module.dtype)
            == f"torch.{'float32' if held_back else fast_format('cpu').name}"
        )
    said = {one.subject: one.detail for one in check_model(str(tmp_path))}[
        "number format"
    ]
    assert not held_back or said.endswith(
        "ATEN_CPU_CAPABILITY=avx2 allows no bfloat16 instructions)"
    )


def test_cudnn_is_left_out_of_attention_on_a_gpu_only(monkeypatch):
    import torch

    from selfrag.training.model import device_of

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: torch.device("cuda")
    )
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        device_of("cpu")
        assert torch.backends.cuda.cudnn_sdp_enabled()
        device_of("cuda")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
