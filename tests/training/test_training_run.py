"""Runs on tiny models: they learn, they begin where another ended, and they do not mix with another run."""

import json
import re

import pytest
import torch
from trained import ROWS, config, log, losses, train, write

from selfrag.errors import UserError
from selfrag.training.settings import Lora


def manifest(run_dir):
    return json.loads((run_dir / "manifest.json").read_text())


def test_defect_27_three_rows_train_and_the_loss_falls(base_dir, rows, tmp_path):
    train(rows, base_dir, tmp_path / "run", config(epochs=20, learning_rate=1e-2, row_learning_rate=1e-2))
    records = log(tmp_path / "run")

    assert records[-1]["loss"] < 0.6 * records[0]["loss"]
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    assert {"text", "retrieve", "isrel", "issup", "isuse", "marker", "eos"} <= set(records[0]["groups"])
    assert "[Relevant]" in {label for record in records for label in record["labels"]}


def test_workers_and_smaller_loads_change_speed_and_memory_and_not_the_learning(base_dir, rows, tmp_path):
    """The same weighted mean over the same rows, up to the rounding of bf16."""
    found = []
    for number, more in enumerate(({"workers": 1}, {"workers": 2}, {"workers": 1, "load_tokens": 60})):
        train(rows, base_dir, tmp_path / str(number), config(step_tokens=2000, epochs=3, **more))
        found.append(losses(tmp_path / str(number)))
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert found[2] == pytest.approx(found[0], rel=0.02)


def test_a_second_stage_begins_where_the_first_ended(base_dir, rows, tmp_path):
    quick = config(epochs=10, learning_rate=1e-2, row_learning_rate=1e-2)
    train(rows, base_dir, tmp_path / "1", quick)
    train(rows, base_dir, tmp_path / "2", quick, start=tmp_path / "1")
    first, second = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert second[0] == pytest.approx(first[-1], rel=0.2)
    assert second[0] < 0.8 * first[0]
    with pytest.raises(UserError, match=r"other inputs \(start\)"):
        train(rows, base_dir, tmp_path / "2", quick, start=tmp_path / "2")
    with pytest.raises(UserError, match="another model, method or adapter size"):
        train(rows, base_dir, tmp_path / "3", config(max_steps=1, method="full"), start=tmp_path / "1")
    with pytest.raises(UserError, match="holds neither"):
        train(rows, base_dir, tmp_path / "3", config(max_steps=1), start=tmp_path / "nowhere")


def test_the_manifest_says_what_was_run_and_another_run_in_its_place_is_refused(base_dir, rows, tmp_path):
    run = tmp_path / "run"
    train(rows, base_dir, run, config(max_length=160, max_steps=1))
    found = manifest(run)
    assert (found["config"]["seed"], found["facts"]["rows"]) == (3, 3)
    assert set(found["inputs"]) == {"rows", "base"}
    assert "torch" in found["versions"]
    assert len(log(run)) == 1

    with pytest.raises(UserError, match=r"other config \(learning_rate\)"):
        train(rows, base_dir, run, config(max_length=160, max_steps=1, learning_rate=1e-5))
    with pytest.raises(UserError, match=r"other inputs \(rows\)"):
        train(write(tmp_path / "other.jsonl", ROWS[:2]), base_dir, run, config(max_length=160, max_steps=1))


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
    """Also on a machine for which `auto` is another one, and in bf16 where it began before that was a setting."""
    settings, run = config(max_steps=2, precision="auto"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setenv("ATEN_CPU_CAPABILITY", "avx2")
        train(rows, base_dir, run, settings)
    found = manifest(run)
    assert found["config"]["precision"] == "fp32"
    assert "ATEN_CPU_CAPABILITY=avx2" in found["facts"]["precision"]
    assert train(rows, base_dir, run, settings).causal.dtype == torch.float32
    with pytest.raises(UserError, match="precision"):
        train(rows, base_dir, run, config(max_steps=2, precision="bf16"))
    del found["config"]["precision"]
    (run / "manifest.json").write_text(json.dumps(found))
    assert train(rows, base_dir, run, settings).causal.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": 0}, "epochs=0: give a whole number of at least 1"),
        ({"lora": Lora(rank=0)}, "lora rank=0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"held_out": 1.5}, "held_out=1.5"),
        ({"method": "prefix"}, "method='prefix': choose one of lora, full"),
        ({"method": "full", "quantize": "nf4"}, "for method 'lora'"),
        ({"quantize": "int3"}, "quantize"),
        ({"quantize": "nf4"}, "recipes with [scale]"),  # and not the loop
        ({"device": "gpu"}, "give cpu or cuda"),
        ({"device": "cuda"}, "finds none here; give cpu"),
    ],
)
def test_settings_with_which_nothing_can_be_learned_are_refused(base_dir, rows, tmp_path, changes, said):
    if changes == {"device": "cuda"} and torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(UserError, match=re.escape(said)):
        train(rows, base_dir, tmp_path / "run", config(**changes))
    assert not (tmp_path / "run").exists()
