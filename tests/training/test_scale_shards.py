"""The model in shards: FSDP2 and DeepSpeed ZeRO-3 in two CPU processes learn, save and resume what one process does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from trained import losses

from selfrag.training.recipes import launch_file
from selfrag.training.settings import Scale

HERE = Path(__file__).parent
CONFIG = {
    "epochs": 4,
    "learning_rate": 3e-3,
    "row_learning_rate": 3e-3,
    "precision": "fp32",
    "checkpoint_steps": 2,
}


def environment(sharding, folder):
    """What `accelerate launch` makes of our launch file, without a GPU."""
    file = launch_file(Scale(sharding=sharding), gpu=True)
    settings = yaml.safe_load(file.read_text())
    if sharding == "fsdp":
        names = {
            f"FSDP_{name.removeprefix('fsdp_').upper()}": str(v)
            for name, v in settings["fsdp_config"].items()
        }
        return {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_USE_CPU": "true", **names}
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(
            settings["deepspeed_config"]["zero3_init_flag"]
        ),
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file.with_name("zero3.json")),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(folder),  # DeepSpeed builds a part of itself
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "sharding, method", [("fsdp", "full"), ("zero3", "full"), ("zero3", "lora")]
)
def test_shards_learn_save_and_resume_what_one_process_does(
    base_dir, rows, tmp_path, sharding, method
):
    if sharding == "zero3":
        pytest.importorskip("deepspeed")
    there = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    two = "-m torch.distributed.run --standalone --nproc-per-node=2".split()

    def run(out, program, more, **scale):
        tables = {
            "config": {**CONFIG, "method": method},
            "scale": {"micro_tokens": 90, **scale},
        }
        line = [
            sys.executable,
            *program,
            str(HERE / "scaled.py"),
            str(base_dir),
            str(rows),
            str(out),
        ]
        done = subprocess.run(
            [*line, json.dumps(tables)],
            env=there | more,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        [file] = (out / "product").glob("*.safetensors")
        return load_file(file)

    alone, shards = tmp_path / "alone", tmp_path / "shards"
    whole = run(alone, [], {})
    gathered = run(shards, two, environment(sharding, tmp_path), sharding=sharding)
    assert losses(shards / "run") == pytest.approx(losses(alone / "run"), rel=2e-3)
    assert set(whole) == set(gathered)
    for name, value in whole.items():
        torch.testing.assert_close(
            gathered[name].float(), value.float(), rtol=0.02, atol=2e-3
        )

    shutil.rmtree(shards / "product")
    shutil.rmtree(shards / "run/trainer/checkpoint-4")
    for name, value in run(
        shards, two, environment(sharding, tmp_path), sharding=sharding
    ).items():
        assert torch.equal(value, gathered[name]), name
    assert losses(shards / "run") == pytest.approx(losses(alone / "run"), rel=2e-3)
