"""Two small files for the commands `selfrag index ..`, which tests drive as a user does."""

from pathlib import Path

import pytest


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Names of the files, in the folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    Path("facts.jsonl").write_text(
        '{"id": "bee", "title": "Bee", "text": "Bees make honey.", "year": 1}\n'
    )
    Path("guide.md").write_text(
        "# Dogs\n\nA dog barks. A dog sleeps. " + "A dog eats a long dinner. " * 30
    )
    return "facts.jsonl guide.md"


@pytest.fixture
def ix(command):
    """Run a line without its `selfrag index`: its output and error output."""
    return lambda line, **options: command(f"selfrag index {line}", **options)
