"""Dry runs: counts are exact, the shape is the model's, memory goes the right way."""

from dataclasses import replace

import pytest
from families import save_base
from trained import config, log, train

from selfrag.training.estimate import RunEstimate, estimate, read_shape
from selfrag.training.expansion import expanded_tokenizer
from selfrag.training.model import load_trainee
from selfrag.training.run import rows_of
from selfrag.training.settings import Lora, Scale


def prepared(base, rows, settings):
    return rows_of(rows, settings)(expanded_tokenizer(base))


@pytest.mark.parametrize(
    "family", ["llama sentencepiece", "llama tied", "gpt2", "neox"]
)
def test_parameters_are_counted_as_training_will_find_them(tmp_path, family):
    base = save_base(tmp_path / "base", family)
    shape = read_shape(base, config(lora=Lora(4, 8)))
    trainee = load_trainee(base, lora=Lora(4, 8))
    assert shape.adapter == sum(p.numel() for p in trainee.parameters.values())
    full = load_trainee(base, method="full", plain=True)
    grown = 15 * 64 * (1 if full.expansion.tied else 2) if family != "neox" else 0
    assert shape.body + shape.vocabulary + grown == sum(
        p.numel() for p in full.weights.values()
    )


def test_counts_are_those_of_the_run(base_dir, rows, tmp_path):
    settings = config(epochs=3)
    found = estimate(prepared(base_dir, rows, settings), base_dir, settings, None)
    train(rows, base_dir, tmp_path / "run", settings)
    records = log(tmp_path / "run")
    assert found.steps == len(records)
    assert found.tokens == sum(record["tokens"] for record in records)
    assert found.targets == sum(
        group["n"] for record in records for group in record["groups"].values()
    )
    assert found.largest_load == max(record["tokens"] for record in records)


def test_memory_goes_the_right_way(base_dir, rows):
    lora = config()
    full = replace(lora, method="full")
    rows_here = prepared(base_dir, rows, lora)

    def memory(settings, scale=None, processes=1):
        return estimate(
            rows_here, base_dir, settings, scale, processes=processes
        ).memory

    assert memory(full)["optimiser"] > memory(lora)["optimiser"]
    sharded = memory(full, Scale(sharding="zero3"), processes=4)
    assert sharded["optimiser"] == pytest.approx(memory(full)["optimiser"] / 4)
    assert (
        memory(full, Scale(checkpointing=True))["activations"]
        < memory(full, Scale())["activations"]
    )


def test_the_lines_of_an_estimate():
    lines = RunEstimate(
        3, 900, 300, 450, 10**6, 10**5, {"weights": 2.0**30, "logits": 2.0**29}
    ).lines(1)
    assert lines == [
        "tokens      900 over 1 pass, 300 of them with a loss",
        "steps       3, at most 450 tokens at once a process",
        "parameters  1.0 M, 0.1 M trained",
        "memory      about 1.5 GiB a process, by its shape (weights 1.00, logits 0.50)",
    ]
