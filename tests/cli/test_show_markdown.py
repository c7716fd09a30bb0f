"""Markdown on a terminal is laid out; in a pipe it stays Markdown."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

TEXT = "### Figures\n\n| name | share |\n| --- | ---: |\n| [a](https://evil.example) | 1.0 |\n"
SHOW = f"from selfrag.cli.options import show_markdown; show_markdown({TEXT!r} + chr(27) + '[31m')"


def test_a_pipe_gets_the_text() -> None:
    found = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout
    assert found == TEXT + "\ufffd[31m"


def test_a_terminal_gets_a_table_without_links() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", SHOW], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "Figures" in shown
    assert "| --- |" not in shown
    assert "###" not in shown
    assert "\x1b]8" not in shown  # no link that a terminal opens
    assert "\x1b[31m" not in shown
