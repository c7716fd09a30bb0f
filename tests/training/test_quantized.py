"""A base in 4 bits under an adapter (QLoRA), on a CPU: what is in 4 bits, learned, written and refused."""

import json
from dataclasses import replace

import pytest
import torch
from families import save_base
from trained import config, losses, same

from selfrag.errors import UserError
from selfrag.training.export import merge, save_adapter
from selfrag.training.run import fit, rows_of
from selfrag.training.scale import fit_scaled
from selfrag.training.settings import Scale

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("quantized") / "base", "llama sentencepiece")


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_it_learns_as_without_quantisation_and_merges_into_the_base_as_it_is(base, rows, tmp_path, precision):
    from bitsandbytes.nn import Linear4bit

    plain = config(epochs=6, learning_rate=3e-3, row_learning_rate=3e-3, precision=precision)
    settings = replace(plain, quantize="nf4")
    scale = Scale(micro_tokens=90, checkpointing=True)
    found = fit_scaled(rows_of(rows, settings), base, tmp_path / "nf4", settings, scale)
    again = fit_scaled(rows_of(rows, settings), base, tmp_path / "nf4", settings, scale)
    assert same(again.trainee, found.trainee)
    fit_scaled(rows_of(rows, plain), base, tmp_path / "plain", plain, scale)
    quantised = [one for one in found.trainee.causal.modules() if isinstance(one, Linear4bit)]
    assert len(quantised) == 7 * found.trainee.causal.config.num_hidden_layers
    assert {one.weight.dtype for one in quantised} == {torch.uint8}
    assert all(value.dtype == torch.float32 for value in found.trainee.parameters.values())
    ours, theirs = losses(tmp_path / "nf4"), losses(tmp_path / "plain")
    assert ours == pytest.approx(theirs, rel=0.05)
    assert ours != theirs
    assert ours[-1] < 0.9 * ours[0]
    adapter = save_adapter(found.trainee, tmp_path / "adapter")
    assert "quantization" not in (adapter / "adapter_config.json").read_text()
    merged = merge(base, adapter, tmp_path / "merged")
    assert "quantization_config" not in json.loads((merged / "config.json").read_text())
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(merged)
    assert not any(isinstance(one, Linear4bit) for one in model.modules())


def test_what_cannot_be(base, rows, tmp_path):
    with pytest.raises(UserError, match="for method 'lora'"):
        config(method="full", quantize="nf4")
    with pytest.raises(UserError, match="quantize"):
        config(quantize="int3")
    settings = config(quantize="nf4")
    with pytest.raises(UserError, match=r"recipes with \[scale\]"):
        fit(rows_of(rows, settings), base, tmp_path / "loop", settings)
