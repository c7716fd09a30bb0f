"""Long jobs that are killed and interrupted: a sample here, `SELFRAG_KILLS=12` for 12 of each job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = os.environ.get("SELFRAG_KILLS")
UNTRIED = ["checkpoint", "label", "augment", "pairs", "eval", "sweep", "interpret"]
"""Jobs whose kills no other test tries."""

pytestmark = [pytest.mark.engine, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")]


def test_killed_or_interrupted_at_random_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    jobs = [] if KILLS else UNTRIED
    program = Path(__file__).with_name("long_jobs.py")
    command = [sys.executable, str(program), str(tmp_path), *jobs, "--kills", KILLS or "2"]
    there = os.environ | {"PYTHONPATH": str(program.parents[1])}
    done = subprocess.run(command, env=there, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == (len(jobs) or 9)
    assert all(line.endswith("nothing lost") for line in lines)
