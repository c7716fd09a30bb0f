"""Hooks of the documentation site: a line `::: command PROGRAM` becomes the help of all commands of the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"^::: command (\w+)$", flags=re.M)


def help_of(program: str) -> str:
    """The commands and options of `selfrag` or `critic` as Markdown, by typer; headings a level lower."""
    words = [sys.executable, "-m", "typer", f"{program}.cli.main", "utils", "docs", "--name", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)  # noqa: S603
    return re.sub(r"^#", "##", done.stdout, flags=re.M)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return MARK.sub(lambda found: help_of(found[1]), markdown)
