"""kill -9 and a full disk, for real: in processes of their own, with the file system's own refusal."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from trained import config, interrupted

from selfrag.errors import UserError
from selfrag.training.job import trained
from selfrag.training.run import rows_of, train
from selfrag.training.scale import fit_scaled
from selfrag.training.settings import Scale

SCALED = Path(__file__).with_name("scaled.py")
LOOPED = """
import sys; sys.path.insert(0, {here!r})
from pathlib import Path
from trained import config, interrupted
from selfrag.training.run import train
train(Path({rows!r}), Path({base!r}), Path({out!r}), config(epochs=40, checkpoint_steps=3))
"""


def log(run_dir):
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]


def killed_after(line, run_dir, steps):
    """Start a program and kill it (-9) as soon as its log has this many lines."""
    root = str(Path(__file__).parents[2])
    there = {**os.environ, "PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    path = run_dir / "log.jsonl"
    with subprocess.Popen(line, env=there, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        try:
            while not path.exists() or path.read_bytes().count(b"\n") < steps:
                assert child.poll() is None, child.stderr.read().decode()[-2000:]
                time.sleep(0.005)
        finally:
            child.kill()
    assert child.returncode == -signal.SIGKILL
    return path.read_bytes().count(b"\n")


def test_the_loop_goes_on_after_kill_9_to_the_same_numbers(base_dir, rows, tmp_path):
    settings = config(epochs=40, checkpoint_steps=3)
    whole = train(rows, base_dir, tmp_path / "whole", settings)
    program = LOOPED.format(
        here=str(Path(__file__).parent), rows=str(rows), base=str(base_dir), out=str(tmp_path / "killed")
    )
    for steps in (1, 14):
        killed_after([sys.executable, "-c", program], tmp_path / "killed", steps)
    resumed = train(rows, base_dir, tmp_path / "killed", settings)

    expected = {name: value.detach() for name, value in whole.parameters.items()}
    assert all(torch.equal(value, expected[name]) for name, value in resumed.parameters.items())
    assert [r["loss"] for r in log(tmp_path / "killed")] == [r["loss"] for r in log(tmp_path / "whole")]


def test_the_trainer_goes_on_after_kill_9_to_the_same_numbers(base_dir, rows, tmp_path):
    tables = {"config": {"epochs": 24, "checkpoint_steps": 3}, "scale": {"micro_tokens": 90}}
    settings, scale = config(**tables["config"]), Scale(**tables["scale"])
    whole = fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "whole", settings, scale).trainee
    line = [sys.executable, str(SCALED), str(base_dir), str(rows), str(tmp_path / "killed"), json.dumps(tables)]
    killed_after(line, tmp_path / "killed" / "run", 5)
    resumed = fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "killed" / "run", settings, scale).trainee

    expected = {name: value.detach() for name, value in whole.parameters.items()}
    assert all(torch.equal(value, expected[name]) for name, value in resumed.parameters.items())
    assert [r["loss"] for r in log(tmp_path / "killed" / "run")] == [r["loss"] for r in log(tmp_path / "whole")]


@pytest.mark.parametrize("scale", [None, Scale(micro_tokens=90)], ids=["loop", "trainer"])
def test_a_checkpoint_is_minutes_old_at_most(base_dir, rows, tmp_path, monkeypatch, capsys, scale):
    """No checkpoint is due by steps; with a limit of no minutes there is one after each step."""
    if scale is not None:
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    settings = config(max_steps=3, checkpoint_steps=1000, checkpoint_minutes=0.0)
    with interrupted(monkeypatch, 3):
        trained(rows_of(rows, settings), base_dir, tmp_path / "run", settings, scale)
    capsys.readouterr()
    trained(rows_of(rows, settings), base_dir, tmp_path / "run", settings, scale)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training: ")]
    assert [line.split(",")[0] for line in said] == ["training: step 3 of 3"]
    assert "tokens/s, 0 s left" in said[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full: a full disk cannot be had here")
@pytest.mark.parametrize("file", ["log.partial", "checkpoint.partial"])
def test_a_full_disk_is_one_line_and_costs_nothing(base_dir, rows, tmp_path, monkeypatch, file):
    settings, run = config(epochs=4, checkpoint_steps=2), tmp_path / "run"
    whole = train(rows, base_dir, tmp_path / "whole", settings)
    with interrupted(monkeypatch, 3):
        train(rows, base_dir, run, settings)
    checkpoint = (run / "checkpoint.pt").read_bytes()

    (run / file).symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"no space left while writing .*; free some and run the same again"):
        train(rows, base_dir, run, settings)
    assert (run / "checkpoint.pt").read_bytes() == checkpoint
    resumed = train(rows, base_dir, run, settings)

    expected = {name: value.detach() for name, value in whole.parameters.items()}
    assert all(torch.equal(value, expected[name]) for name, value in resumed.parameters.items())
    assert [r["loss"] for r in log(run)] == [r["loss"] for r in log(tmp_path / "whole")]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    line = [mount, "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)]
    if mount is None or subprocess.run(line, capture_output=True, check=False).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run([shutil.which("umount"), "-l", str(place)], check=True)


def test_the_trainer_on_a_full_disk_says_so_in_one_line(base_dir, rows, small_disk):
    """Neither safetensors nor torch raise an OSError there."""
    settings = config(epochs=4, checkpoint_steps=1)
    with pytest.raises(UserError, match=r"no space left while writing .*checkpoint-\d"):
        fit_scaled(rows_of(rows, settings), base_dir, small_disk / "run", settings, Scale())
