"""Dry runs: counts are exact, the shape is the model's, memory and time go the right way."""

from dataclasses import replace

import pytest
from families import save_base
from trained import config, log, train

from selfrag.training.estimate import Estimate, estimate, read_shape, summary
from selfrag.training.expansion import expanded_tokenizer
from selfrag.training.model import load_trainee
from selfrag.training.run import rows_of
from selfrag.training.settings import Lora, Scale


def prepared(base, rows, settings):
    return rows_of(rows, settings)(expanded_tokenizer(base))


@pytest.mark.parametrize("family", ["llama sentencepiece", "llama tied", "gpt2", "neox"])
def test_parameters_are_counted_as_training_will_find_them(tmp_path, family):
    base = save_base(tmp_path / "base", family)
    shape = read_shape(base, config(lora=Lora(4, 8)))
    trainee = load_trainee(base, lora=Lora(4, 8))
    assert shape.adapter == sum(p.numel() for p in trainee.parameters.values())
    full = load_trainee(base, method="full", plain=True)
    grown = 15 * 64 * (1 if full.expansion.tied else 2) if family != "neox" else 0
    assert shape.body + shape.vocabulary + grown == sum(p.numel() for p in full.weights.values())


def test_counts_are_those_of_the_run(base_dir, rows, tmp_path):
    settings = config(epochs=3)
    found = estimate(prepared(base_dir, rows, settings), base_dir, settings, None)
    train(rows, base_dir, tmp_path / "run", settings)
    records = log(tmp_path / "run")
    assert found.steps == len(records)
    assert found.tokens == sum(record["tokens"] for record in records)
    assert found.targets == sum(group["n"] for record in records for group in record["groups"].values())
    assert found.largest_load == max(record["tokens"] for record in records)


def test_what_is_calculated_goes_the_right_way(base_dir, rows, monkeypatch):
    monkeypatch.setattr("selfrag.training.estimate._MOST", 0.0)
    lora = config()
    full = replace(lora, method="full")
    rows_here = prepared(base_dir, rows, lora)

    def of(settings, scale=None, processes=1):
        return estimate(rows_here, base_dir, settings, scale, processes=processes)

    assert of(full).calculated["optimiser"] > of(lora).calculated["optimiser"]
    sharded = of(full, Scale(sharding="zero3"), processes=4)
    assert sharded.calculated["optimiser"] == pytest.approx(of(full).calculated["optimiser"] / 4)
    saved = of(full, Scale(checkpointing=True))
    assert saved.calculated["activations"] < of(full, Scale()).calculated["activations"]
    assert of(full).memory == pytest.approx(sum(of(full).calculated.values()))


@pytest.mark.parametrize(
    ("layers", "scale", "precision"), [(12, None, "fp32"), (2, Scale(checkpointing=True, micro_tokens=100), "bf16")]
)
def test_real_steps_of_few_layers_tell_time_and_memory_of_all(tmp_path, rows, layers, scale, precision):
    """Of the loop, with more layers than are measured, and of one process of the Trainer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    base = save_base(tmp_path / "base", "llama tied")
    shape = AutoConfig.from_pretrained(base)
    shape.num_hidden_layers = layers
    AutoModelForCausalLM.from_config(shape).save_pretrained(base)
    settings = config(method="full", precision=precision)
    found = estimate(prepared(base, rows, settings), base, settings, scale)
    assert found.calculated is None
    assert 0 < found.share <= 1
    assert 2**28 < found.memory < 2**33  # nearly all of it is the process itself
    assert 0.001 < found.seconds < 60


def test_the_summary_tells_the_time_alone_and_beside_other_work():
    quiet = Estimate(3, 900, 300, 450, 10**6, 10**5, 2.0**30, 7200.0, 0.9, None)
    lines = summary(quiet, 1)
    assert lines[0] == "tokens      900 over 1 pass, 300 of them with a loss"
    assert lines[3] == "memory      about 1.0 GiB a process, measured by real steps"
    assert lines[4] == "time        about 2.0 hours with 1 process"
    busy = summary(replace(quiet, share=0.25, calculated={"weights": 2.0**30}), 2, 4)
    assert busy[3].endswith("a process (weights 1.00), calculated from the model's shape, good to a factor of two")
    assert busy[4].endswith(
        "4 processes; other work takes 75% of the machine now, and beside that it would be 8.0 hours"
    )
