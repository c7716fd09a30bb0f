"""Long jobs that are killed, interrupted, and run out of disk: a sample here, `SELFRAG_KILLS=12` for 12 of each job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = os.environ.get("SELFRAG_KILLS")
UNTRIED = ["checkpoint", "label", "augment", "pairs", "eval", "sweep", "interpret"]
"""Jobs whose kills no other test tries."""

pytestmark = [pytest.mark.engine, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return tmp_path_factory.mktemp("jobs")


def disturbed(home: Path, jobs: list[str], *how: str) -> list[str]:
    command = [sys.executable, str(Path(__file__).with_name("long_jobs.py")), str(home), *jobs, *how]
    there = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=there, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_killed_or_interrupted_at_random_nothing_is_lost_or_doubled(home: Path) -> None:
    jobs = [] if KILLS else UNTRIED
    lines = disturbed(home, jobs, "--kills", KILLS or "2")
    assert len(lines) == (len(jobs) or 9)
    assert all(line.endswith("nothing lost") for line in lines)


def can_mount(place: Path) -> bool:
    place.mkdir()
    if shutil.which("mount") is None:
        return False
    line = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    mounted = subprocess.run(line, capture_output=True, check=False).returncode == 0
    if mounted:
        subprocess.run(["umount", str(place)], check=True)
    return mounted


@pytest.mark.slow
def test_on_a_full_disk_a_job_says_so_in_one_line_and_ends_the_same_with_more_room(home: Path) -> None:
    if not can_mount(home / "mounted"):
        pytest.skip("file systems cannot be mounted here")
    jobs = [] if KILLS else ["checkpoint", "label"]
    assert len(disturbed(home, jobs, "--disks")) == (len(jobs) or 9)
