"""docs/intrinsics/training.md is executed: its Python with its output, its commands on a tiny model."""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from selfrag.cli.main import main
from selfrag.training.intrinsics.presets import PRESETS

TEXT = (Path(__file__).parents[3] / "docs" / "intrinsics" / "training.md").read_text(encoding="utf-8")


def blocks(kind):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [body for name, body in found if name == kind]


def test_the_python_prints_what_the_page_shows():
    (code,), (shown,) = blocks("python"), blocks("")
    printed = StringIO()
    with redirect_stdout(printed):
        exec(code, {})  # the point of this test
    assert printed.getvalue() == shown


@pytest.mark.engine
def test_the_commands_run(data, chat_llama, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("selfrag ")]
    assert len(commands) == 3
    for line in commands:
        replaced = {"DATA": str(data), "demo": str(chat_llama)}
        arguments = [replaced.get(word, word) for word in shlex.split(line)[1:]]
        if arguments[0] == "train":
            arguments += ["--preset", "paper", "--max-steps", "1"]
        else:
            arguments += ["--engine", "transformers", "--limit", "2", "--only", "answerability", "--shots", "0"]
        assert main(arguments) == 0, line
    assert (tmp_path / "runs" / "answerability" / "adapter" / "intrinsic.json").exists()
    assert (tmp_path / "report" / "report.md").exists()
    capsys.readouterr()


def test_what_the_page_says_of_the_presets_is_so():
    assert set(PRESETS) == {"paper", "demo"}
    paper = PRESETS["paper"]
    assert paper["query_rewrite"].training["lora"]["rank"] == paper["answerability"].training["lora"]["rank"] == 32
    assert paper["answerability"].training["learning_rate"] == 5e-6
    assert paper["hallucination_detection"].training["learning_rate"] == 1e-5
    assert PRESETS["paper"]["citation_generation"].training["lora"]["rank"] == 8
