"""The pages of docs/guides/intrinsics are executed: what a block prints is what the page says; what is named exists."""

import re
import shlex
from pathlib import Path

import pytest

from scripts.tools import refresh_examples
from selfrag.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "guides" / "intrinsics").glob("*.md")
}


def blocks(text, *kinds):
    """Bodies of the fenced blocks of these kinds."""
    pairs = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [body for kind, body in pairs if kind in kinds]


def run(text):
    """The namespace after all `python` blocks of a page, in which they run one after the other."""
    namespace = {"__name__": "__docs__"}
    for body in blocks(text, "python"):
        # the point of this test
        exec(compile(body, "page.md", "exec", dont_inherit=True), namespace)
    return namespace


def test_the_page_of_training_runs():
    assert run(PAGES["training"])


@pytest.mark.demo
@pytest.mark.parametrize("page", ["using", "executors", "flows"])
def test_pages_run_on_the_demo_model(page, tmp_path, monkeypatch, capsys):
    assert blocks(PAGES[page], "python")
    monkeypatch.chdir(tmp_path)
    namespace = run(PAGES[page])
    said = capsys.readouterr().out
    assert said.strip()
    if page == "executors":
        assert "of the probability is on the two labels" in said
        assert "It appeared in 1975." in said
    for name in ("rag", "executor"):
        if name in namespace:
            namespace[name].close()
    if page == "using":
        for command in [
            line
            for body in blocks(PAGES[page], "console")
            for line in refresh_examples.commands(body)
        ]:
            assert main(shlex.split(command)[1:]) == 0, command


@pytest.mark.engine
def test_the_commands_of_training_run(data, chat_llama, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [
        line for body in blocks(PAGES["training"], "sh") for line in body.splitlines()
    ]
    # one starts from an adapter that the reader has
    commands = [
        line
        for line in lines
        if line.startswith("selfrag ") and "--start ADAPTER" not in line
    ]
    assert len(commands) == 3
    for line in commands:
        replaced = {"DATA": str(data), "demo": str(chat_llama)}
        arguments = [replaced.get(word, word) for word in shlex.split(line)[1:]]
        if arguments[0] == "train":
            arguments += ["--recipe", "paper", "--max-steps", "1"]
        else:
            arguments += [
                "--engine",
                "transformers",
                "--limit",
                "2",
                "--only",
                "answerability",
                "--shots",
                "0",
            ]
        assert main(arguments) == 0, line
    assert (tmp_path / "runs" / "answerability" / "adapter" / "intrinsic.json").exists()
    assert (tmp_path / "report" / "report.md").exists()
    capsys.readouterr()
