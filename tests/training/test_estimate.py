"""Dry runs: counts are exact, the shape is the model's, memory and time go the right way."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from families import save_base
from trained import config, write

from selfrag.errors import UserError
from selfrag.loading import load_tokenizer
from selfrag.training.estimate import estimate, read_shape, total_gib
from selfrag.training.expansion import add_tokens
from selfrag.training.model import Lora, load_trainee
from selfrag.training.run import rows_of, train
from selfrag.training.scale.settings import Scale


def prepared(base, rows, settings):
    tokenizer = load_tokenizer(base)
    add_tokens(tokenizer)
    return rows_of(rows, settings)(tokenizer)


@pytest.mark.parametrize("family", ["llama sentencepiece", "llama tied", "gpt2", "qwen2", "neox"])
def test_parameters_are_counted_as_training_will_find_them(tmp_path, family):
    base = save_base(tmp_path / "base", family)
    shape = read_shape(base, config(lora=Lora(4, 8)))
    trainee = load_trainee(base, lora=Lora(4, 8))
    assert shape.adapter == sum(p.numel() for p in trainee.parameters.values())
    full = load_trainee(base, method="full", plain=True)
    grown = 15 * 64 * (1 if full.expansion.tied else 2) if family != "neox" else 0
    assert shape.body + shape.vocabulary + grown == sum(p.numel() for p in full.weights.values())


def test_counts_are_those_of_the_run(tmp_path):
    base, rows = save_base(tmp_path / "base", "llama tied"), write(tmp_path / "rows.jsonl")
    settings = config(epochs=3)
    found = estimate(prepared(base, rows, settings), base, settings, None)
    train(rows, base, tmp_path / "run", settings)
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert found.steps == len(records)
    assert found.tokens == sum(record["tokens"] for record in records)
    assert found.targets == sum(group["n"] for record in records for group in record["groups"].values())
    assert found.largest_load == max(record["tokens"] for record in records)


def test_memory_and_time_go_the_right_way(tmp_path):
    base, rows = save_base(tmp_path / "base", "llama tied"), write(tmp_path / "rows.jsonl")
    lora = config()
    full = replace(lora, method="full")
    rows_here = prepared(base, rows, lora)

    def of(settings, scale=None, processes=1):
        return estimate(rows_here, base, settings, scale, processes=processes)

    assert of(full).memory["optimiser"] > of(lora).memory["optimiser"]
    assert of(full).trained == of(full).parameters
    sharded = of(full, Scale(sharding="zero3"), processes=4)
    assert sharded.memory["optimiser"] == pytest.approx(of(full).memory["optimiser"] / 4)
    saved = of(full, Scale(checkpointing=True))
    assert saved.memory["activations"] < of(full, Scale()).memory["activations"]
    work = of(replace(lora, epochs=8)), of(lora)
    assert work[0].seconds * work[0].rate > 1.9 * work[1].seconds * work[1].rate
    assert total_gib(of(full).memory) == pytest.approx(sum(of(full).memory.values()) / 2**30)


def test_a_directory_without_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no causal language model"):
        read_shape(tmp_path, config())
