"""The README is executed: its Python blocks run in one namespace, its commands run one after the other in a folder."""

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", TEXT, flags=re.M | re.S)
PYTHON = [body for language, body in BLOCKS if language == "python"]
COMMANDS = [
    line[2:].split("  #")[0]
    for language, body in BLOCKS
    if language == "console"
    for line in body.splitlines()
    if line.startswith(("$ selfrag ", "$ critic "))
]
PAIRS = [
    {"id": "tea-1", "instruction": "How hot should water for green tea be?", "output": "80 degrees"},
    {"id": "tea-2", "instruction": "What water does black tea want?", "output": "Boiling water."},
    {"id": "sum-1", "instruction": "What is 17 + 25?", "output": "42"},
]


def test_readme_has_examples():
    assert PYTHON
    assert COMMANDS


@pytest.mark.demo
def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__readme__"}
    # Not capsys: vLLM sets up logging anew, and absl (of rouge-score) then closes a stderr that is no longer in use.
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for body in PYTHON:
            exec(compile(body, "README.md", "exec"), namespace)  # the point of this test
    assert out.getvalue().strip()


@pytest.mark.demo
def test_commands_run(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tea.md").write_text(
        "# Tea\n\nGreen tea is brewed at 80 degrees. Black tea wants boiling water.\n"
    )
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    for command in COMMANDS:
        words = [word for part in shlex.split(command) for word in ([*map(str, tmp_path.glob(part))] or [part])]
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip(), command


def test_links_of_the_readme_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)|src=\"([^\":]+)\"", TEXT):
        path = target[0] or target[1]
        assert (ROOT / path).exists(), path


def test_no_paths_of_a_machine():
    assert not re.search(r"(?<![\w.])/(?:root|home|tmp)/", TEXT)
