"""The model in shards: FSDP2 and DeepSpeed ZeRO-3 in two CPU processes learn, save and resume what one process does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from trained import losses

from selfrag.training.recipes import launch_file
from selfrag.training.settings import Scale

HERE = Path(__file__).parent
CONFIG = {"epochs": 4, "learning_rate": 3e-3, "row_learning_rate": 3e-3, "precision": "fp32", "checkpoint_steps": 2}


def environment(sharding: str, folder: Path) -> dict[str, str]:
    """What `accelerate launch` makes of our launch file, without a GPU."""
    settings = yaml.safe_load(launch_file(Scale(sharding=sharding), gpu=True).read_text())
    if sharding == "fsdp":
        names = {f"FSDP_{name.removeprefix('fsdp_').upper()}": str(v) for name, v in settings["fsdp_config"].items()}
        return {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_USE_CPU": "true", **names}
    file = launch_file(Scale(sharding=sharding), gpu=True).with_name("zero3.json")
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(settings["deepspeed_config"]["zero3_init_flag"]),
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(folder),  # DeepSpeed builds a part of itself
    }


@pytest.fixture(scope="module")
def extensions(tmp_path_factory):
    return tmp_path_factory.mktemp("extensions")


def run(sharding: str, method: str, base: Path, rows: Path, out: Path, extensions: Path | None) -> None:
    settings = {"config": {**CONFIG, "method": method}, "scale": {"micro_tokens": 90}}
    line = [sys.executable, str(HERE / "scaled.py")]
    there = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if sharding != "none":
        settings["scale"]["sharding"] = sharding
        there |= environment(sharding, extensions)
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        line.append(str(HERE / "sharded.py"))
    arguments = [str(base), str(rows), str(out), json.dumps(settings)]
    done = subprocess.run([*line, *arguments], env=there, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def weights(out: Path) -> dict[str, Any]:
    [file] = (out / "product").glob("*.safetensors")
    return load_file(file)


@pytest.mark.slow
@pytest.mark.parametrize(("sharding", "method"), [("fsdp", "full"), ("zero3", "full"), ("zero3", "lora")])
def test_shards_learn_save_and_resume_what_one_process_does(base_dir, rows, tmp_path, extensions, sharding, method):
    if sharding == "zero3":
        pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    run("none", method, base_dir, rows, tmp_path / "alone", None)
    shards = tmp_path / "shards"
    run(sharding, method, base_dir, rows, shards, extensions)

    assert losses(shards / "run") == pytest.approx(losses(tmp_path / "alone" / "run"), rel=2e-3)
    whole, gathered = weights(tmp_path / "alone"), weights(shards)
    assert set(whole) == set(gathered)
    for name, value in whole.items():
        torch.testing.assert_close(gathered[name].float(), value.float(), rtol=0.02, atol=2e-3)

    shutil.rmtree(shards / "product")
    shutil.rmtree(shards / "run" / "trainer" / "checkpoint-4")
    run(sharding, method, base_dir, rows, shards, extensions)
    assert losses(shards / "run") == pytest.approx(losses(tmp_path / "alone" / "run"), rel=2e-3)
    for name, value in weights(shards).items():
        assert torch.equal(value, gathered[name]), name
