"""Where the Trainer puts a model."""

import torch
from refusals import refused

from selfrag.common.errors import UserError
from selfrag.training import scale
from selfrag.training.settings import Scale, TrainingConfig


def test_the_trainer_loads_the_model_where_it_computes(tmp_path, monkeypatch):
    """The Trainer moves the model's own parameters only; weights that fused layers keep would stay on the CPU."""
    places = []

    def load(base, config, scaling, *, device):
        places.append(device)
        raise UserError("seen")

    def start(prepare, base, config, why, load, start):
        load()

    monkeypatch.setattr(scale, "load_scaled", load)
    monkeypatch.setattr(scale, "begin", start)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda")
    )
    monkeypatch.setenv("LOCAL_RANK", "1")
    config = TrainingConfig(precision="bf16")
    for scaling in (Scale(), Scale(sharding="zero3")):
        with refused("seen"):
            scale.fit_scaled(None, tmp_path, tmp_path / "run", config, scaling)
    assert places == ["cuda:1", "cpu"]
