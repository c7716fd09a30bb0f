"""What only a real process can show: kill -9 at random and at every publishing step, and a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parent / "small_run.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals, limits and fork")


def start(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False, **options)


def test_killed_at_random_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    done = start(str(tmp_path), "--kills", "8")
    assert done.returncode == 0, done.stderr
    assert "killed 8 times" in done.stdout


def test_killed_at_every_publishing_step_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    done = start(str(tmp_path), "--renames")
    assert done.returncode == 0, done.stderr
    # run.json, 3 shards, 3 files, the manifest and its draft; before and after each
    assert "killed at 18 points" in done.stdout


FULL = """
import resource, sys
from pathlib import Path
import small_run
from retrieval.errors import UserError
pairs = small_run.write_pairs(Path(sys.argv[1]) / "pairs.jsonl")
for limit in (500, 4_000, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        small_run.run(pairs, Path(sys.argv[1]) / "out")
    except UserError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
small_run.run(pairs, Path(sys.argv[1]) / "out")
small_run.run(pairs, Path(sys.argv[1]) / "whole")
assert small_run.contents(Path(sys.argv[1]) / "out") == small_run.contents(Path(sys.argv[1]) / "whole")
"""


def test_a_full_disk_is_one_line_and_the_next_run_finishes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPT.parent)])}
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3  # in run.json, in a shard, in the final files
    assert all(line.startswith("no space left while writing ") for line in lines)
    assert all(line.endswith("free some and run the same again") for line in lines)
