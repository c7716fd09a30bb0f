"""LoRA by request: equal to merged weights, and every adapter that vLLM would die of is refused with the reason."""

import json

import pytest
from lora_on_the_spot import save_adapter

from selfrag.engines.adapters import read_adapter, unsupported
from selfrag.errors import EngineError


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"modules_to_save": ["embed_tokens", "lm_head"]}, "whole modules"),
        ({"trainable_token_indices": [401, 402]}, "trained token rows"),
    ],
)
def test_adapters_that_peft_writes_and_vllm_cannot_serve(tiny_llama, tmp_path, settings, reason):
    path = save_adapter(tiny_llama, tmp_path / "adapter", **settings)
    with pytest.raises(EngineError, match=reason) as caught:
        read_adapter("mine", path)
    assert "'mine'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"r": 8, "peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING"),
        ({"r": 8, "use_qalora": True}, "QALoRA"),
        ({"r": 8, "use_dora": True}, "DoRA"),
        ({"r": 8, "bias": "lora_only"}, "biases"),
        ({"r": 8, "lora_bias": True}, "biases"),
        ({"r": 600}, "rank 600"),
        ({"r": 8, "alora_invocation_tokens": [3, 4]}, "aLoRA"),
        ({"r": 8, "use_bdlora": {"x": 1}}, "BD-LoRA"),
        ({"r": 8, "layer_replication": [[0, 2]]}, "replicates"),
        ({"r": 8, "init_lora_weights": "pissa_niter_16"}, "pissa_niter_16"),
        ({"r": 8, "rank_pattern": {"q_proj": 1024}}, "rank 1024"),
        ({}, "rank 0"),
    ],
)
def test_configurations_that_vllm_cannot_serve(config, reason):
    found = unsupported(config)
    assert found is not None
    assert reason in found


def test_embedding_weights_beside_the_pairs_are_found(tiny_llama, tmp_path):
    """PEFT saves the whole embedding with an adapter on it; vLLM would drop that copy silently."""
    path = save_adapter(tiny_llama, tmp_path / "a", target_modules=["q_proj", "embed_tokens"])
    with pytest.raises(EngineError, match="beside the LoRA pairs"):
        read_adapter("mine", path)


def test_missing_and_broken_files(tiny_llama, tmp_path):
    with pytest.raises(EngineError, match=r"adapter_config\.json is missing"):
        read_adapter("mine", tmp_path / "nowhere")
    path = save_adapter(tiny_llama, tmp_path / "a")
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    with pytest.raises(EngineError, match="cannot be read"):
        read_adapter("mine", path)
    weights.unlink()
    with pytest.raises(EngineError, match="is missing"):
        read_adapter("mine", path)
    (path / "adapter_config.json").write_text("{")
    with pytest.raises(EngineError, match="not JSON"):
        read_adapter("mine", path)
    (path / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(EngineError, match="not a JSON object"):
        read_adapter("mine", path)
