"""The Trainer learns what the CPU loop learns, alone and in two processes, and refuses what this machine cannot do."""

import json
from dataclasses import replace

import pytest
import torch
from families import save_base
from trained import config, log, losses, same

from selfrag.cli.main import main
from selfrag.errors import UserError
from selfrag.training.export import merge, save_adapter
from selfrag.training.recipes import GENERATOR, read_recipe
from selfrag.training.run import fit, rows_of
from selfrag.training.scale import COMPLETE, fit_scaled
from selfrag.training.settings import Scale

RECIPE = """
[training]
method = "lora"
epochs = 4
seed = 3
step_tokens = 300
learning_rate = 3e-3
row_learning_rate = 3e-3
precision = "fp32"
held_out = 0.3
validate_steps = 2
lora = { rank = 4, alpha = 8 }

[scale]
micro_tokens = 90
"""


@pytest.mark.parametrize(("family", "method"), [("llama sentencepiece", "lora"), ("gpt2", "full")])
def test_trainer_and_loop_give_the_same_first_loss_and_nearly_the_same_curve(tmp_path, rows, family, method):
    base = save_base(tmp_path / "base", family)
    rate = 3e-3 if method == "lora" else 1e-3
    settings = config(method=method, epochs=6, learning_rate=rate, row_learning_rate=rate)
    fit(rows_of(rows, settings), base, tmp_path / "loop", settings)
    fit_scaled(rows_of(rows, settings), base, tmp_path / "scale", settings, Scale(micro_tokens=90))
    loop, scaled = log(tmp_path / "loop"), log(tmp_path / "scale")

    assert scaled[0]["loss"] == pytest.approx(loop[0]["loss"], rel=1e-2 if method == "full" else 2e-3)
    assert [r["loss"] for r in scaled] == pytest.approx([r["loss"] for r in loop], rel=0.05)
    assert scaled[-1]["loss"] < 0.9 * scaled[0]["loss"]
    for one, other in zip(loop, scaled, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["rate"] == pytest.approx(other["rate"])
        assert [group["n"] for group in one["groups"].values()] == [group["n"] for group in other["groups"].values()]


def test_attention_checkpointing_and_load_size_do_not_change_the_loss(base_dir, rows, tmp_path):
    settings = config(max_steps=2, learning_rate=5e-3, precision="fp32")
    kinds = [Scale(), Scale(attention="sdpa"), Scale(checkpointing=True), Scale(micro_tokens=1)]
    for number, scale in enumerate(kinds):
        fit_scaled(rows_of(rows, settings), base_dir, tmp_path / str(number), settings, scale)
        assert losses(tmp_path / str(number)) == pytest.approx(losses(tmp_path / "0"), rel=1e-4)
    with pytest.raises(UserError, match=r"other config \(scale\)"):
        fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "0", settings, Scale(micro_tokens=50))


def test_a_loss_that_is_no_number_stops_the_run_and_leaves_the_checkpoint(base_dir, rows, tmp_path):
    settings = config(epochs=8, learning_rate=1e30, row_learning_rate=1e30, checkpoint_steps=1)
    for name, start in (("loop", fit), ("scale", lambda *given: fit_scaled(*given, Scale()))):
        with pytest.raises(UserError, match=r"step \d+: the gradient is not finite.*below 1e\+30"):
            start(rows_of(rows, settings), base_dir, tmp_path / name, settings)
    assert (tmp_path / "loop" / "checkpoint.pt").exists()
    assert list((tmp_path / "scale" / "trainer").glob(f"checkpoint-*/{COMPLETE}"))


def test_two_processes_of_the_command_learn_what_one_learns(base_dir, rows, tmp_path):
    """DDP over gloo through `accelerate launch`: loads dealt to both, one gradient of the whole step."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    recipe = read_recipe(str(tmp_path / "recipe.toml"), GENERATOR).assigned(["training.clip=0.5"])
    assert recipe.scale == Scale(micro_tokens=90)
    fit_scaled(rows_of(rows, recipe.config), base_dir, tmp_path / "alone", recipe.config, recipe.scale)
    two = tmp_path / "two"
    command = ["train", "adapter", str(rows), "--base", str(base_dir), "-o", str(two), "--processes", "2"]
    assert main([*command, "--recipe", str(tmp_path / "recipe.toml"), "--set", "training.clip=0.5"]) == 0
    manifest = json.loads((two / "run" / "manifest.json").read_text())
    assert (manifest["config"]["processes"], manifest["config"]["clip"]) == (2, 0.5)
    assert list(two.glob("*/README.md"))

    one, other = log(tmp_path / "alone"), log(two / "run")
    assert [r["loss"] for r in other] == pytest.approx([r["loss"] for r in one], rel=2e-3)
    assert [r["groups"]["eos"]["n"] for r in other] == [r["groups"]["eos"]["n"] for r in one]
    looks = [[r["validation"]["loss"] for r in records if "validation" in r] for records in (one, other)]
    assert len(looks[0]) == 2
    assert looks[1] == pytest.approx(looks[0], rel=2e-3)


def test_what_shards_cannot_do_is_refused(base_dir, rows, tmp_path):
    def start(**more):
        settings = config(**more.pop("config", {}))
        fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "run", settings, Scale(sharding="fsdp"), **more)

    with pytest.raises(UserError, match="merged checkpoint of the one before"):
        start(start=tmp_path)
    with pytest.raises(UserError, match="held_out is for sharding = 'none'"):
        start(config={"held_out": 0.34})
    with pytest.raises(UserError, match="quantize = 'nf4' is for sharding = 'none'"):
        start(config={"quantize": "nf4"})
    with pytest.raises(UserError, match=r"tied embeddings .* take sharding = 'zero3' or 'none'"):
        start()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_four_bits_learn_what_the_plain_base_learns_and_merge_into_it(tmp_path, rows, precision):
    """QLoRA: its linear layers and nothing else are quantised, and what is exported knows nothing of it."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from bitsandbytes.nn import Linear4bit
    from transformers import AutoModelForCausalLM

    base = save_base(tmp_path / "base", "llama sentencepiece")
    plain = config(epochs=6, learning_rate=3e-3, row_learning_rate=3e-3, precision=precision)
    settings, scale = replace(plain, quantize="nf4"), Scale(micro_tokens=90, checkpointing=True)
    found = fit_scaled(rows_of(rows, settings), base, tmp_path / "nf4", settings, scale).trainee
    again = fit_scaled(rows_of(rows, settings), base, tmp_path / "nf4", settings, scale).trainee
    assert same(again, found)
    fit_scaled(rows_of(rows, plain), base, tmp_path / "plain", plain, scale)
    quantised = [one for one in found.causal.modules() if isinstance(one, Linear4bit)]
    assert len(quantised) == 7 * found.causal.config.num_hidden_layers
    assert {one.weight.dtype for one in quantised} == {torch.uint8}
    assert all(value.dtype == torch.float32 for value in found.parameters.values())
    ours, theirs = losses(tmp_path / "nf4"), losses(tmp_path / "plain")
    assert ours == pytest.approx(theirs, rel=0.05)
    assert ours != theirs
    adapter = save_adapter(found, tmp_path / "adapter")
    assert "quantization" not in (adapter / "adapter_config.json").read_text()
    model = AutoModelForCausalLM.from_pretrained(merge(base, adapter, tmp_path / "merged"))
    assert not hasattr(model.config, "quantization_config")
    assert not any(isinstance(one, Linear4bit) for one in model.modules())
