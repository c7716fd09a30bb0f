"""The README is executed: here in an empty folder, and as a newcomer would, from a clone, in a test marked slow."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import refresh_examples

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.demo
def test_the_examples_run(tmp_path: Path, programs: Path) -> None:
    shown = refresh_examples.run_page(TEXT, "README.md", tmp_path, programs)
    assert "80 degrees [1]" in shown
    assert re.search(r"^(True|False) (True|False)$", shown, flags=re.M)  # what `rescore` says


@pytest.mark.slow
def test_the_way_of_a_newcomer_from_the_readme_alone(tmp_path: Path) -> None:
    """Clone, `make demo`, a question, own documents, steering: the README's blocks in an environment of their own."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True, timeout=120)
    made = re.search(r"```bash\n(make demo\n.*?)```", TEXT, flags=re.S)
    assert made
    ours = {"PYTHONPATH", "SELFRAG_CACHE", "VIRTUAL_ENV"}
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    where = 'python -c "import selfrag, sys; print(selfrag.__file__, sys.prefix)"'
    script = f"set -e\n{made[1]}python scripts/refresh_examples.py README.md\n{where}\n"
    command, clone = ["bash", "-c", script], tmp_path / "clone"
    done = subprocess.run(command, cwd=clone, env=clean, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "80 degrees [1]" in (clone / "README.md").read_text(encoding="utf-8")
    assert done.stdout.splitlines()[-1] == f"{clone}/selfrag/__init__.py {clone}/.venv"


def test_it_has_at_most_180_lines() -> None:
    assert len(TEXT.splitlines()) <= 180


def test_files_that_it_links_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)|src=\"([^\":]+)\"", TEXT):
        assert (ROOT / (target[0] or target[1])).exists(), target


def test_no_paths_of_a_machine() -> None:
    assert not re.search(r"(?<![\w.])/(?:root|home|tmp)/", TEXT)
