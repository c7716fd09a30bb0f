"""Interrupted runs go on to the same numbers: Ctrl-C, kill -9 and a full disk, the last two for real."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trained import config, interrupted, log, losses, same, train

from selfrag.errors import UserError
from selfrag.training.job import trained
from selfrag.training.run import rows_of
from selfrag.training.scale import COMPLETE, fit_scaled
from selfrag.training.settings import Scale

SCALE = Scale(micro_tokens=90)
LOOPED = """
import sys; sys.path.insert(0, {here!r})
from pathlib import Path
from trained import config, train
train(Path({rows!r}), Path({base!r}), Path({out!r}), config(epochs=40, checkpoint_steps=3))
"""


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


def without_time(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.mark.parametrize(
    ("scale", "killed_at", "method"),
    [(None, 1, "lora"), (None, 3, "lora"), (None, 4, "full"), (SCALE, 1, "full"), (SCALE, 3, "lora")],
)
def test_a_killed_run_goes_on_to_the_same_result(base_dir, rows, tmp_path, monkeypatch, scale, killed_at, method):
    """Before, between and after checkpoints; run once more after its end, it is loaded."""
    settings = config(checkpoint_steps=2, method=method)
    whole = trained(rows_of(rows, settings), base_dir, tmp_path / "whole", settings, scale).trainee
    with interrupted(monkeypatch, killed_at):
        trained(rows_of(rows, settings), base_dir, tmp_path / "killed", settings, scale)
    for _ in range(2):
        resumed = trained(rows_of(rows, settings), base_dir, tmp_path / "killed", settings, scale).trainee
        assert same(resumed, whole)
        assert without_time(log(tmp_path / "killed")) == without_time(log(tmp_path / "whole"))


def test_kill_9_changes_nothing(base_dir, rows, tmp_path):
    settings = config(epochs=40, checkpoint_steps=3)
    whole = train(rows, base_dir, tmp_path / "whole", settings)
    program = LOOPED.format(
        here=str(Path(__file__).parent), rows=str(rows), base=str(base_dir), out=str(tmp_path / "killed")
    )
    killed_after([sys.executable, "-c", program], tmp_path / "killed", 14)
    assert same(train(rows, base_dir, tmp_path / "killed", settings), whole)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")

    tables = {"config": {"epochs": 24, "checkpoint_steps": 3}, "scale": {"micro_tokens": 90}}
    settings, run = config(**tables["config"]), tmp_path / "scaled" / "run"
    whole = fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "whole scaled", settings, SCALE).trainee
    program = str(Path(__file__).with_name("scaled.py"))
    killed_after([sys.executable, program, str(base_dir), str(rows), str(run.parent), json.dumps(tables)], run, 5)
    assert same(fit_scaled(rows_of(rows, settings), base_dir, run, settings, SCALE).trainee, whole)
    assert losses(run) == losses(tmp_path / "whole scaled")


def test_a_torn_checkpoint_is_passed_over(base_dir, rows, tmp_path):
    settings = config(checkpoint_steps=2, epochs=4)
    first = fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "run", settings, Scale()).trainee
    torn = tmp_path / "run" / "trainer" / "checkpoint-4"
    (torn / COMPLETE).unlink()
    (torn / "optimizer.pt").write_bytes(b"half of it")
    assert same(fit_scaled(rows_of(rows, settings), base_dir, tmp_path / "run", settings, Scale()).trainee, first)
    assert len(losses(tmp_path / "run")) == 4


@pytest.mark.parametrize("scale", [None, SCALE], ids=["loop", "trainer"])
def test_a_checkpoint_is_minutes_old_at_most(base_dir, rows, tmp_path, monkeypatch, capsys, scale):
    """No checkpoint is due by steps; with a limit of no minutes there is one after each step."""
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
    assert same(train(rows, base_dir, run, settings), whole)
    assert losses(run) == losses(tmp_path / "whole")


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
