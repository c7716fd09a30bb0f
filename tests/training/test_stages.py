"""A stage begins with what an exported adapter holds: every parameter, in bf16; of another size it is refused."""

import json

import pytest
import tiny
import torch
from trained import config, write

from selfrag.errors import UserError
from selfrag.training.export import WEIGHTS, save_adapter
from selfrag.training.journal import fingerprint, load_parameters
from selfrag.training.model import load_trainee
from selfrag.training.run import train
from selfrag.training.settings import Lora


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base_dir(tmp_path_factory, request):
    return tiny.save_llama(tmp_path_factory.mktemp("base") / "m", reflection=False, tie=request.param)


@pytest.fixture
def trained(base_dir, tmp_path):
    rows = write(tmp_path / "rows.jsonl")
    trainee = train(rows, base_dir, tmp_path / "run", config(max_steps=3, learning_rate=1e-2))
    save_adapter(trainee, tmp_path / "adapter")
    return trainee


def fresh(base_dir, lora=None):
    return load_trainee(base_dir, method="lora", lora=lora or config().lora, seed=99)


def test_every_parameter_comes_from_the_adapter(base_dir, trained, tmp_path):
    other = fresh(base_dir)
    assert any(not torch.equal(value, trained.parameters[name]) for name, value in other.parameters.items())

    digest = load_parameters(tmp_path / "adapter", other.parameters, config().lora)

    assert digest == fingerprint(tmp_path / "adapter" / WEIGHTS)
    for name, value in other.parameters.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, trained.parameters[name].to(torch.bfloat16).float()), name


def test_a_run_begins_with_it_and_says_so(base_dir, trained, tmp_path):
    rows = tmp_path / "rows.jsonl"
    train(rows, base_dir, tmp_path / "2", config(max_steps=1), start=tmp_path / "adapter")
    manifest = json.loads((tmp_path / "2" / "manifest.json").read_text())
    assert manifest["inputs"]["start"] == fingerprint(tmp_path / "adapter" / WEIGHTS)


def test_an_adapter_of_another_size_is_refused(base_dir, trained, tmp_path):
    with pytest.raises(UserError, match="another model, method or adapter size"):
        load_parameters(tmp_path / "adapter", fresh(base_dir, Lora(2, 32.0)).parameters, Lora(2, config().lora.alpha))
    with pytest.raises(UserError, match="lora_alpha"):
        load_parameters(tmp_path / "adapter", fresh(base_dir).parameters, Lora(config().lora.rank, 1.0))


@pytest.mark.parametrize("broken", [WEIGHTS, "adapter_config.json"])
def test_a_broken_adapter_is_named(base_dir, trained, tmp_path, broken):
    (tmp_path / "adapter" / broken).write_bytes(b"\xff not this")
    with pytest.raises(UserError, match="holds no adapter that can be read"):
        load_parameters(tmp_path / "adapter", fresh(base_dir).parameters, config().lora)
