"""Drives the commands `selfrag index ..` as a user does, on two small files."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfrag.cli.index import app


def run(*arguments):
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )


def said(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0
    return done.stdout


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
    return ["facts.jsonl", "guide.md"]
