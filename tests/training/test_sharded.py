"""Our loss through FSDP2 shards (gloo, two CPU processes): loss and every gradient are those of the whole model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from trained import config, write

from selfrag.training.loss import target_losses
from selfrag.training.model import load_trainee
from selfrag.training.run import plan, rows_of
from selfrag.training.scale.loads import Loads

SHARDED = Path(__file__).with_name("sharded.py")


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_of_shards_are_those_of_the_whole(tmp_path, method, tied):
    base = tiny.save_llama(tmp_path / "base", reflection=False, tie=tied)
    rows = write(tmp_path / "rows.jsonl")
    line = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        str(SHARDED), str(base), str(rows), method, str(tmp_path / "found.json"),
    ]  # fmt: skip
    root = str(Path(__file__).parents[2])
    there = {**os.environ, "PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env=there, cwd=root, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())

    settings = config(method=method, step_rows=3, max_steps=1)
    trainee = load_trainee(base, method=method, lora=settings.lora, dtype=torch.float32, plain=True)
    prepared = rows_of(rows, settings)(trainee.tokenizer)
    (load,) = Loads(prepared.examples, plan(prepared, settings), settings.weighting, 1, 10_000)
    losses, _ = target_losses(trainee.model, load.pack)
    loss = (losses * load.pack.weights).sum() / load.total
    loss.backward()
    norms = {n: float(p.grad.norm()) for n, p in trainee.model.named_parameters() if p.grad is not None}

    assert found["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert found["norms"].keys() == norms.keys()
    assert list(found["norms"].values()) == pytest.approx([norms[name] for name in found["norms"]], rel=1e-2, abs=1e-5)
