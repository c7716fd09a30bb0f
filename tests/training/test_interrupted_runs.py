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
from refusals import refused
from trained import config, interrupted, log, losses, same

from selfrag.common import atomic
from selfrag.common.atomic import locked_directory
from selfrag.training.run import rows_of
from selfrag.training.scale import COMPLETE, fit_scaled
from selfrag.training.settings import Scale

SCALE = Scale(micro_tokens=90)
both = pytest.mark.parametrize("scale", [None, SCALE], ids=["loop", "trainer"])


def kill_after(steps, base_dir, rows, run_dir, tables):
    """Train in another process until its log has this many lines, and kill it (-9)."""
    program = str(Path(__file__).with_name("scaled.py"))
    arguments = [base_dir, rows, run_dir.parent, json.dumps(tables)]
    line = [sys.executable, program, *map(str, arguments)]
    root = str(Path(__file__).parents[2])
    there = os.environ | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1"}
    there["OMP_NUM_THREADS"] = "1"
    path = run_dir / "log.jsonl"
    with subprocess.Popen(
        line, env=there, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        while not path.exists() or path.read_bytes().count(b"\n") < steps:
            assert child.poll() is None, child.stderr.read().decode()[-2000:]
            time.sleep(0.005)
        child.kill()
    assert child.returncode == -signal.SIGKILL


def without_time(records):
    return [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in records
    ]


@pytest.mark.parametrize("killed_at, method", [(1, "full"), (3, "lora")])
@both
def test_a_killed_run_goes_on_to_the_same_result(
    learn, tmp_path, monkeypatch, scale, killed_at, method
):
    """Before and between checkpoints; run once more after its end, it is loaded."""
    settings = {"checkpoint_steps": 2, "method": method}
    whole = learn("whole", scale, **settings)
    with interrupted(monkeypatch, killed_at):
        learn("killed", scale, **settings)
    records = without_time(log(tmp_path / "whole"))
    for _ in range(2):
        assert same(learn("killed", scale, **settings), whole)
        assert without_time(log(tmp_path / "killed")) == records


def test_kill_9_changes_nothing(base_dir, rows, tmp_path):
    """With the Trainer; `tests/test_long_jobs.py` kills the loop."""
    tables = {
        "config": {"epochs": 12, "checkpoint_steps": 3},
        "scale": {"micro_tokens": 90},
    }
    settings, run = config(**tables["config"]), tmp_path / "killed/run"
    made = rows_of(rows, settings)
    whole = fit_scaled(made, base_dir, tmp_path / "whole", settings, SCALE).trainee
    kill_after(5, base_dir, rows, run, tables)
    assert same(fit_scaled(made, base_dir, run, settings, SCALE).trainee, whole)
    assert losses(run) == losses(tmp_path / "whole")


@both
def test_issue_48_a_second_process_does_not_cut_the_log_of_a_run(
    learn, tmp_path, monkeypatch, scale
):
    run = tmp_path / "run"
    with interrupted(monkeypatch, 3):
        learn("run", scale)
    with locked_directory(run), refused("another process .*run"):
        learn("run", scale)
    assert [record["step"] for record in log(run)] == [1, 2, 3]


def test_a_torn_checkpoint_is_passed_over(learn, tmp_path):
    settings = {"checkpoint_steps": 2, "epochs": 4}
    first = learn("run", Scale(), **settings)
    torn = tmp_path / "run/trainer/checkpoint-4"
    (torn / COMPLETE).unlink()
    (torn / "optimizer.pt").write_bytes(b"half of it")
    assert same(learn("run", Scale(), **settings), first)
    assert len(losses(tmp_path / "run")) == 4


@both
def test_a_checkpoint_is_minutes_old_at_most(learn, monkeypatch, capsys, scale):
    """No checkpoint is due by steps; with a limit of no minutes there is one after each step."""
    settings = {"max_steps": 3, "checkpoint_steps": 1000, "checkpoint_minutes": 0.0}
    with interrupted(monkeypatch, 3):
        learn("run", scale, **settings)
    capsys.readouterr()
    learn("run", scale, **settings)
    lines = capsys.readouterr().err.splitlines()
    (said,) = [line for line in lines if line.startswith("training: ")]
    assert said.startswith("training: step 3 of 3,")
    assert "tokens/s, 0 s left" in said


@pytest.mark.skipif(
    not Path("/dev/full").exists(),
    reason="no /dev/full: a full disk cannot be had here",
)
def test_a_full_disk_is_one_line_and_costs_nothing(learn, tmp_path, monkeypatch):
    settings, run = {"epochs": 4, "checkpoint_steps": 2}, tmp_path / "run"
    whole = learn("whole", **settings)
    with interrupted(monkeypatch, 3):
        learn(**settings)
    checkpoint = (run / "checkpoint.pt").read_bytes()

    full = run / "full"
    full.symlink_to("/dev/full")
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "_sibling", lambda target, ending: full)
        with refused(r"no space left"):
            learn(**settings)
    assert (run / "checkpoint.pt").read_bytes() == checkpoint
    assert same(learn(**settings), whole)
    assert losses(run) == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    "error, free",
    [("No space left on device (os error 28)", 10**9), ("short write", 9)],
)
def test_the_trainer_on_a_full_disk_says_so_in_one_line(
    learn, tmp_path, monkeypatch, error, free
):
    """Neither safetensors nor torch raise an OSError there."""

    def full(*_):
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr("selfrag.training.scale.shutil.disk_usage", lambda _: usage)
        raise RuntimeError(error)

    monkeypatch.setattr("transformers.Trainer._save_checkpoint", full)
    with refused(r"no space left .*checkpoint-1"):
        learn("run", Scale(), max_steps=1, checkpoint_steps=1)
