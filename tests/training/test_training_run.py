"""Runs on tiny models: they learn, they resume bit for bit, and they do not mix with another run."""

import json
import re

import pytest
import torch
from lettered import row
from trained import ROWS, config, interrupted, write

from selfrag.errors import UserError
from selfrag.training.run import train
from selfrag.training.settings import Lora


def state(trainee):
    return {name: parameter.detach().clone() for name, parameter in trainee.parameters.items()}


def log(run_dir):
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]


def without_time(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def test_defect_27_three_rows_train_and_the_loss_falls(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "run", config(epochs=20, learning_rate=1e-2, row_learning_rate=1e-2))
    records = log(tmp_path / "run")

    assert records[-1]["loss"] < 0.6 * records[0]["loss"]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    assert {"text", "retrieve", "isrel", "issup", "isuse", "marker", "eos"} <= set(records[0]["groups"])
    assert "[Relevant]" in {label for record in records for label in record["labels"]}


@pytest.mark.parametrize("killed_at", [1, 3, 4])
def test_a_killed_run_goes_on_to_the_same_result(base_dir, rows, tmp_path, monkeypatch, killed_at):
    settings = config(checkpoint_steps=2)
    whole = train(rows, base_dir, tmp_path / "whole", settings)

    with interrupted(monkeypatch, killed_at):
        train(rows, base_dir, tmp_path / "killed", settings)
    resumed = train(rows, base_dir, tmp_path / "killed", settings)

    expected = state(whole)
    assert all(torch.equal(value, expected[name]) for name, value in state(resumed).items())
    assert without_time(log(tmp_path / "killed")) == without_time(log(tmp_path / "whole"))


def test_a_finished_run_is_loaded_not_continued(base_dir, rows, tmp_path):
    first = train(rows, base_dir, tmp_path / "run", config())
    lines = (tmp_path / "run" / "log.jsonl").read_text()
    second = train(rows, base_dir, tmp_path / "run", config())

    expected = state(first)
    assert all(torch.equal(value, expected[name]) for name, value in state(second).items())
    assert (tmp_path / "run" / "log.jsonl").read_text() == lines


def test_workers_change_the_speed_and_not_the_learning(base_dir, rows, tmp_path):
    """One load or two: the same weighted mean over the same rows, up to the rounding of bf16."""
    losses = {}
    for workers in (1, 2):
        train(rows, base_dir, tmp_path / str(workers), config(workers=workers, step_tokens=2000, epochs=3))
        losses[workers] = [record["loss"] for record in log(tmp_path / str(workers))]
    assert losses[1] == pytest.approx(losses[2], rel=0.02)


def test_smaller_loads_change_the_memory_and_not_the_learning(base_dir, rows, tmp_path):
    losses = {}
    for load_tokens in (None, 60):
        settings = config(workers=1, step_tokens=2000, epochs=3, load_tokens=load_tokens)
        train(rows, base_dir, tmp_path / str(load_tokens), settings)
        losses[load_tokens] = [record["loss"] for record in log(tmp_path / str(load_tokens))]
    assert losses[60] == pytest.approx(losses[None], rel=0.02)


def test_a_second_stage_begins_where_the_first_ended(base_dir, rows, tmp_path):
    quick = config(epochs=10, learning_rate=1e-2, row_learning_rate=1e-2)
    train(rows, base_dir, tmp_path / "1", quick)
    train(rows, base_dir, tmp_path / "2", quick, start=tmp_path / "1")
    first, second = log(tmp_path / "1"), log(tmp_path / "2")
    assert second[0]["loss"] == pytest.approx(first[-1]["loss"], rel=0.2)
    assert second[0]["loss"] < 0.8 * first[0]["loss"]
    with pytest.raises(UserError, match=r"other inputs \(start\)"):
        train(rows, base_dir, tmp_path / "2", quick, start=tmp_path / "2")


def test_a_stage_cannot_begin_with_another_kind_of_run(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "1", config(max_steps=1))
    with pytest.raises(UserError, match="another model, method or adapter size"):
        train(rows, base_dir, tmp_path / "2", config(max_steps=1, method="full"), start=tmp_path / "1")
    with pytest.raises(UserError, match="holds neither"):
        train(rows, base_dir, tmp_path / "2", config(max_steps=1), start=tmp_path / "nowhere")


def test_another_configuration_in_the_same_place_is_refused(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "run", config())
    with pytest.raises(UserError, match=r"other config \(learning_rate\)"):
        train(rows, base_dir, tmp_path / "run", config(learning_rate=1e-5))


def test_other_rows_in_the_same_place_are_refused(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "run", config())
    with pytest.raises(UserError, match=r"other inputs \(rows\)"):
        train(write(tmp_path / "other.jsonl", ROWS[:2]), base_dir, tmp_path / "run", config())


def test_max_steps_cuts_the_last_epoch(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "run", config(max_steps=3))
    assert len(log(tmp_path / "run")) == 3


def test_full_fine_tuning_trains_everything(base_dir, rows, tmp_path):
    trainee = train(rows, base_dir, tmp_path / "run", config(method="full", max_steps=2, learning_rate=1e-3))
    from transformers import AutoModelForCausalLM

    original = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.bfloat16).state_dict()
    vocabulary = len(original["model.embed_tokens.weight"])
    for name, parameter in trainee.weights.items():
        before, after = original[name].float(), parameter.detach()[:vocabulary]
        assert not torch.equal(after, before), name
        assert torch.equal(trainee.computed[name].detach(), parameter.detach().to(torch.bfloat16)), name
    assert list(trainee.rows) == ["embed_tokens.rows"]


def test_a_run_goes_on_in_the_precision_it_began_with(base_dir, rows, tmp_path, monkeypatch):
    """Also on a machine for which `auto` is another one; by default bf16 was taken where it is many times slower."""
    settings = config(max_steps=2, precision="auto")
    with monkeypatch.context() as patch:
        patch.setenv("ATEN_CPU_CAPABILITY", "avx2")
        train(rows, base_dir, tmp_path / "run", settings)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["precision"] == "fp32"
    assert "ATEN_CPU_CAPABILITY=avx2" in manifest["facts"]["precision"]
    assert train(rows, base_dir, tmp_path / "run", settings).causal.dtype == torch.float32
    with pytest.raises(UserError, match="precision"):
        train(rows, base_dir, tmp_path / "run", config(max_steps=2, precision="bf16"))


def test_a_run_from_before_precision_was_a_setting_goes_on_in_bf16(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "run", config(max_steps=1))
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["config"]["precision"]
    path.write_text(json.dumps(manifest))
    trainee = train(rows, base_dir, tmp_path / "run", config(max_steps=1, precision="auto"))
    assert trainee.causal.dtype == torch.bfloat16


def test_the_manifest_says_what_was_run(base_dir, rows, tmp_path):
    long = write(tmp_path / "long.jsonl", [*ROWS, row("Hello!", instruction="Say it.", id="d")])
    train(long, base_dir, tmp_path / "run", config(max_length=160, max_steps=1))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())

    assert manifest["config"]["seed"] == 3
    assert manifest["facts"]["rows"] == 4
    assert set(manifest["inputs"]) == {"rows", "base"}
    assert "torch" in manifest["versions"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": 0}, "epochs=0: give a whole number of at least 1"),
        ({"step_tokens": 0}, "step_tokens=0"),
        ({"max_passage": -1}, "max_passage=-1"),
        ({"lora": Lora(rank=0)}, "lora rank=0"),
        ({"learning_rate": -1e-4}, "learning_rate=-0.0001: give a number of at least 0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"warmup": 1.5}, "warmup=1.5: give a number from 0 to 1"),
        ({"method": "prefix"}, "method='prefix': choose one of lora, full"),
    ],
)
def test_settings_with_which_nothing_can_be_learned_are_refused(changes, said):
    with pytest.raises(UserError, match=re.escape(said)):
        config(**changes)


@pytest.mark.parametrize(("device", "said"), [("gpu", "give cpu or cuda"), ("cuda", "finds none here; give cpu")])
def test_a_device_that_is_not_there_is_one_line(base_dir, rows, tmp_path, device, said):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(UserError, match=said):
        train(rows, base_dir, tmp_path / "run", config(device=device))
    assert not (tmp_path / "run").exists()
