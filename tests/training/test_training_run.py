"""Runs on tiny models, by the loop and by the Trainer: both learn the same, keep the best, and refuse another run."""

import re
from dataclasses import replace

import pytest
import torch
from families import save_base
from json_files import parse_table, read_json, write_json
from refusals import refused
from trained import ROWS, config, interrupted, log, losses, same, write

from selfrag.cli.main import main
from selfrag.training.export import merge, save_adapter
from selfrag.training.job import trained
from selfrag.training.recipes import read_recipe
from selfrag.training.run import PreparedRows, fit, held_out, rows_of
from selfrag.training.scale import COMPLETE, fit_scaled
from selfrag.training.settings import Lora, Reach, Scale


def manifest(run_dir):
    return read_json(run_dir / "manifest.json")


def test_defect_27_three_rows_train_and_the_loss_falls(learn, tmp_path):
    learn(epochs=20, learning_rate=1e-2, row_learning_rate=1e-2)
    records = log(tmp_path / "run")

    assert records[-1]["loss"] < 0.6 * records[0]["loss"]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    groups = set("text retrieve isrel issup isuse marker eos".split())
    assert groups <= set(records[0]["groups"])
    assert "[Relevant]" in {label for record in records for label in record["labels"]}


def test_workers_and_smaller_loads_change_speed_and_memory_and_not_the_learning(
    learn, tmp_path
):
    """The same weighted mean over the same rows, up to the rounding of bf16."""
    found = []
    for more in ({"workers": 1}, {"workers": 2}, {"workers": 1, "load_tokens": 60}):
        place = str(len(found))
        learn(place, step_tokens=2000, epochs=3, **more)
        found.append(losses(tmp_path / place))
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert found[2] == pytest.approx(found[0], rel=0.02)


def test_a_second_stage_begins_where_the_first_ended(learn, tmp_path):
    quick = {"epochs": 10, "learning_rate": 1e-2, "row_learning_rate": 1e-2}
    learn("1", **quick)
    learn("2", start=tmp_path / "1", **quick)
    first, second = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert second[0] == pytest.approx(first[-1], rel=0.2)
    assert second[0] < 0.8 * first[0]
    with refused(r"other inputs\.start"):
        learn("2", start=tmp_path / "2", **quick)
    with refused("another model"):
        learn("3", start=tmp_path / "1", max_steps=1, method="full")
    with refused("holds neither"):
        learn("3", start=tmp_path / "nowhere", max_steps=1)


def test_the_manifest_says_what_was_run_and_another_run_in_its_place_is_refused(
    learn, rows, tmp_path
):
    settings = {"max_length": 160, "max_steps": 1}
    learn(**settings)
    found = manifest(tmp_path / "run")
    assert found["config"]["seed"] == 3
    assert found["facts"]["rows"] == 3
    assert set(found["inputs"]) == {"rows", "base"}
    assert "torch" in found["versions"]
    with refused(r"other config\.learning_rate"):
        learn(learning_rate=1e-5, **settings)
    write(rows, ROWS[:2])
    with refused(r"other inputs\.rows"):
        learn(**settings)


def test_full_fine_tuning_trains_everything(learn, base_dir):
    from transformers import AutoModelForCausalLM

    trainee = learn(method="full", max_steps=2, learning_rate=1e-3)
    original = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.bfloat16)
    original = original.state_dict()
    vocabulary = len(original["model.embed_tokens.weight"])
    for name, parameter in trainee.weights.items():
        value = parameter.detach()
        assert not torch.equal(value[:vocabulary], original[name].float()), name
        computed = trainee.computed[name].detach()
        assert torch.equal(computed, value.to(torch.bfloat16)), name
    assert list(trainee.rows) == ["embed_tokens.rows"]


def test_a_run_goes_on_in_the_precision_it_began_with(learn, tmp_path, monkeypatch):
    """Also on a machine for which `auto` is another one, and in bf16 where it began before that was a setting."""
    settings = {"max_steps": 2, "precision": "auto"}
    with monkeypatch.context() as patch:
        patch.setenv("ATEN_CPU_CAPABILITY", "avx2")
        learn(**settings)
    found = manifest(tmp_path / "run")
    assert found["config"]["precision"] == "fp32"
    assert "ATEN_CPU_CAPABILITY=avx2" in found["facts"]["precision"]
    assert learn(**settings).causal.dtype == torch.float32
    with refused("precision"):
        learn(max_steps=2, precision="bf16")
    del found["config"]["precision"]
    write_json(tmp_path / "run/manifest.json", found)
    assert learn(**settings).causal.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"epochs": 0}, "epochs=0: give a whole number of at least 1"),
        ({"lora": Lora(rank=0)}, "lora rank=0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"held_out": 1.5}, "held_out=1.5"),
        ({"method": "prefix"}, "method='prefix': choose one of lora, full"),
        ({"method": "full", "quantize": "nf4"}, "for method 'lora'"),
        ({"quantize": "nf4"}, "recipes with [scale]"),  # and not the loop
        ({"device": "gpu"}, "give cpu or cuda"),
        ({"device": "cuda"}, "finds none here; give cpu"),
    ],
)
def test_settings_with_which_nothing_can_be_learned_are_refused(
    learn, tmp_path, changes, said
):
    if changes == {"device": "cuda"} and torch.cuda.is_available():
        pytest.skip("there is one here")
    with refused(re.escape(said)):
        learn(**changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "family, method", [("llama sentencepiece", "lora"), ("gpt2", "full")]
)
def test_trainer_and_loop_give_the_same_first_loss_and_nearly_the_same_curve(
    tmp_path, rows, family, method
):
    base = save_base(tmp_path / "base", family)
    rate = 3e-3 if method == "lora" else 1e-3
    settings = config(
        method=method, epochs=6, learning_rate=rate, row_learning_rate=rate
    )
    made = rows_of(rows, settings)
    fit(made, base, tmp_path / "loop", settings)
    fit_scaled(made, base, tmp_path / "scale", settings, Scale(micro_tokens=90))
    loop, scaled = log(tmp_path / "loop"), log(tmp_path / "scale")

    close = 1e-2 if method == "full" else 2e-3
    assert scaled[0]["loss"] == pytest.approx(loop[0]["loss"], rel=close)
    assert scaled[-1]["loss"] < 0.9 * scaled[0]["loss"]
    for one, other in zip(loop, scaled, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.05)
        assert one["tokens"] == other["tokens"]
        assert one["rate"] == pytest.approx(other["rate"])
        counts = [[g["n"] for g in r["groups"].values()] for r in (one, other)]
        assert counts[0] == counts[1]


def test_attention_checkpointing_and_load_size_do_not_change_the_loss(learn, tmp_path):
    settings = {"max_steps": 2, "learning_rate": 5e-3, "precision": "fp32"}
    kinds = ({}, {"attention": "sdpa"}, {"checkpointing": True}, {"micro_tokens": 1})
    for number, kind in enumerate(kinds):
        place = str(number)
        learn(place, Scale(**kind), **settings)
        assert losses(tmp_path / place) == pytest.approx(
            losses(tmp_path / "0"), rel=1e-4
        )
    with refused(r"other config\.scale"):
        learn("0", Scale(micro_tokens=50), **settings)


def test_a_loss_that_is_no_number_stops_the_run_and_leaves_the_checkpoint(
    learn, tmp_path
):
    settings = {"epochs": 8, "checkpoint_steps": 1}
    settings |= dict.fromkeys(("learning_rate", "row_learning_rate"), 1e30)
    for name, scale in (("loop", None), ("scale", Scale())):
        with refused(r"step \d+: .*1e\+30"):
            learn(name, scale, **settings)
    assert (tmp_path / "loop/checkpoint.pt").exists()
    assert list((tmp_path / "scale/trainer").glob(f"checkpoint-*/{COMPLETE}"))


def test_two_processes_of_the_command_learn_what_one_learns(base_dir, rows, tmp_path):
    """DDP over gloo through `accelerate launch`: loads dealt to both, one gradient of the whole step."""
    given = (
        "epochs=4 step_tokens=300 precision=fp32 held_out=0.3 validate_steps=2 clip=0.5"
    )
    given = [f"training.{one}" for one in given.split()] + ["scale.micro_tokens=90"]
    recipe = read_recipe("cpus").assigned(given)
    made, alone = rows_of(rows, recipe.config), tmp_path / "alone"
    fit_scaled(made, base_dir, alone, recipe.config, recipe.scale)
    two = tmp_path / "two"
    command = f"train adapter {rows} --base {base_dir} -o {two} --processes 2".split()
    assert main([*command, "--recipe", "cpus", *(f"--set={one}" for one in given)]) == 0
    settings = manifest(two / "run")["config"]
    assert settings["processes"] == 2
    assert settings["clip"] == 0.5
    assert list(two.glob("*/README.md"))

    looks = []
    for one, other in zip(log(alone), log(two / "run"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=2e-3)
        assert other["groups"]["eos"]["n"] == one["groups"]["eos"]["n"]
        if "validation" in one:
            looks.append(one["validation"]["loss"])
            assert other["validation"]["loss"] == pytest.approx(looks[-1], rel=2e-3)
    assert len(looks) == 2


@pytest.mark.parametrize(
    "settings, start, said",
    parse_table("""
{} | "1" | merged checkpoint of the one before
{"held_out": 0.34} | null | held_out is for sharding = 'none'
{"quantize": "nf4"} | null | quantize = 'nf4' is for sharding = 'none'
{} | null | tied embeddings .* take sharding = 'zero3' or 'none'
"""),
)
def test_what_shards_cannot_do_is_refused(learn, tmp_path, settings, start, said):
    with refused(said):
        learn(
            scale=Scale(sharding="fsdp"), start=start and tmp_path / start, **settings
        )
    assert not (tmp_path / "run").exists()


def test_four_bits_learn_what_the_plain_base_learns_and_merge_into_it(tmp_path, rows):
    """QLoRA: the linear layers and nothing else are quantised, and what is exported knows nothing of it."""
    pytest.importorskip("bitsandbytes")
    from bitsandbytes.nn import Linear4bit
    from transformers import AutoModelForCausalLM

    base = save_base(tmp_path / "base", "llama sentencepiece")
    plain = config(epochs=6, learning_rate=3e-3, row_learning_rate=3e-3)
    settings = replace(plain, quantize="nf4")
    scale = Scale(micro_tokens=90, checkpointing=True)
    made, place = rows_of(rows, settings), tmp_path / "nf4"
    found = fit_scaled(made, base, place, settings, scale).trainee
    assert same(fit_scaled(made, base, place, settings, scale).trainee, found)
    fit_scaled(rows_of(rows, plain), base, tmp_path / "plain", plain, scale)
    quantised = [one for one in found.causal.modules() if isinstance(one, Linear4bit)]
    assert len(quantised) == 7 * found.causal.config.num_hidden_layers
    assert {one.weight.dtype for one in quantised} == {torch.uint8}
    assert all(value.dtype == torch.float32 for value in found.parameters.values())
    assert losses(place) == pytest.approx(losses(tmp_path / "plain"), rel=0.05)
    adapter = save_adapter(found, tmp_path / "adapter")
    assert "quantization" not in (adapter / "adapter_config.json").read_text()
    merged = merge(base, adapter, tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert not hasattr(model.config, "quantization_config")


def test_groups_of_held_out_rows_stay_together_and_the_share_is_kept():
    groups = [f"conversation {i // 3}" for i in range(60)]
    chosen = held_out(groups, 0.1, seed=4)
    assert len(chosen) == 6
    outside = {groups[i] for i in range(60) if i not in chosen}
    assert outside.isdisjoint(groups[i] for i in chosen)
    assert chosen == held_out(groups, 0.1, seed=4)
    # A group that is larger than the share is passed over; where all are, the smallest is taken.
    assert held_out(["an article"] * 40 + groups, 0.1, seed=0).isdisjoint(range(40))
    assert held_out(["a"] * 3 + ["b"] * 2, 0.1, seed=0) == {3, 4}
    with refused("leaves nothing"):
        held_out(["one"] * 5, 0.1, seed=0)


@pytest.mark.parametrize("scale", [None, Scale()], ids=["loop", "trainer"])
def test_a_run_that_gets_worse_stops_and_keeps_its_best_also_if_interrupted(
    tiny_llama, tmp_path, monkeypatch, scale
):
    # A rate this high makes the held-out row worse after a few steps.
    reach, place = Reach(token_rows=False), tmp_path / "run"
    settings = config(
        epochs=30,
        learning_rate=5e-2,
        validate_steps=2,
        patience=2,
        reach=reach,
        workers=1,
    )
    made = rows_of(write(tmp_path / "rows.jsonl"), settings)

    def split(tokenizer):
        found = made(tokenizer)
        kept = (found.examples[:2], found.strata[:2], found.inputs, found.facts)
        return PreparedRows(*kept, found.examples[2:])

    with interrupted(monkeypatch, 5):
        trained(split, tiny_llama, place, settings, scale)
    trainee = trained(split, tiny_llama, place, settings, scale).trainee
    records = log(place)
    looks = {
        one["step"]: one["validation"]["loss"] for one in records if "validation" in one
    }
    best = min(looks, key=lambda step: (looks[step], step))
    assert len(records) < 30
    assert [step for step in looks if step > best] == [best + 2, best + 4]
    kept = torch.load(place / "best.pt", weights_only=True)
    assert kept["step"] == best
    again = trained(split, tiny_llama, place, settings, scale).trainee
    for found in (trainee, again):
        for name, value in found.parameters.items():
            assert torch.equal(value, kept["parameters"][name])
    assert log(place) == records
