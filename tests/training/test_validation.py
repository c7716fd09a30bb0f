"""Held-out rows: the best parameters are kept, the run stops early, and an interrupted run does the same."""

import json
from dataclasses import replace

import pytest
import torch
from trained import ROWS, config, interrupted, log, write

from selfrag.errors import UserError
from selfrag.training.job import Job, run, trained
from selfrag.training.run import Prepared, rows_of
from selfrag.training.settings import Lora, Reach, Scale
from selfrag.training.validation import held_out

WITHOUT_ROWS = Reach(token_rows=False)


@pytest.fixture(scope="module")
def base_dir(tiny_llama):
    return tiny_llama


def prepare(tmp_path, settings):
    made = rows_of(write(tmp_path / "rows.jsonl"), settings)

    def split(tokenizer):
        found = made(tokenizer)
        return Prepared(found.examples[:2], found.strata[:2], found.inputs, found.facts, found.examples[2:])

    return split


def test_groups_stay_together_and_the_share_is_kept():
    groups = [f"conversation {i // 3}" for i in range(60)]
    chosen = held_out(groups, 0.1, seed=4)
    assert len(chosen) == 6
    outside = {groups[i] for i in range(60) if i not in chosen}
    assert outside.isdisjoint(groups[i] for i in chosen)
    assert chosen == held_out(groups, 0.1, seed=4)
    # A group that is larger than the share is passed over; where all are, the smallest is taken.
    assert held_out(["an article"] * 40 + groups, 0.1, seed=0).isdisjoint(range(40))
    assert held_out(["a"] * 3 + ["b"] * 2, 0.1, seed=0) == {3, 4}
    with pytest.raises(UserError, match="leaves nothing"):
        held_out(["one"] * 5, 0.1, seed=0)


@pytest.mark.parametrize("scale", [None, Scale()], ids=["loop", "trainer"])
def test_a_run_that_gets_worse_stops_and_keeps_its_best_also_if_interrupted(base_dir, tmp_path, monkeypatch, scale):
    # A rate this high makes the held-out row worse after a few steps.
    settings = config(
        epochs=30, learning_rate=5e-2, validate_steps=2, patience=2, reach=WITHOUT_ROWS, lora=Lora(4, 8), workers=1
    )
    made = prepare(tmp_path, settings)
    with interrupted(monkeypatch, 5):
        trained(made, base_dir, tmp_path / "run", settings, scale)
    trainee = trained(made, base_dir, tmp_path / "run", settings, scale).trainee

    records = log(tmp_path / "run")
    looks = {one["step"]: one["validation"]["loss"] for one in records if "validation" in one}
    best = min(looks, key=lambda step: (looks[step], step))
    assert len(records) < 30
    assert [step for step in looks if step > best] == [best + 2, best + 4]
    kept = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    assert kept["step"] == best
    again = trained(made, base_dir, tmp_path / "run", settings, scale).trainee
    for found in (trainee, again):
        assert all(torch.equal(value, kept["parameters"][name]) for name, value in found.parameters.items())
    assert log(tmp_path / "run") == records


def test_a_share_of_the_rows_is_held_out_by_a_setting(base_dir, tmp_path):
    more = [replace(one, id=f"{one.id}{n}") for n in range(3) for one in ROWS]  # copies share their instruction
    settings = config(epochs=2, held_out=0.34, validate_steps=1, reach=WITHOUT_ROWS)
    job = Job(write(tmp_path / "rows.jsonl", more), base_dir, tmp_path / "out", settings)
    run(job)
    facts = json.loads((job.run_dir / "manifest.json").read_text())["facts"]
    assert (facts["rows"], facts["held_out"]) == (9, 3)
    looks = [one["validation"] for one in log(job.run_dir) if "validation" in one]
    assert len(looks) == len(log(job.run_dir))
    assert (job.run_dir / "best.pt").exists()
    card = (job.product / "README.md").read_text()
    assert "3 rows, of which nothing was learned. The parameters are those after step" in card
    assert f"{min(look['loss'] for look in looks):.3f}." in card
