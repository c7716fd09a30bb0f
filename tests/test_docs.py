"""Commands in the documents: each is parsed by the program it names, so that no page shows an option that is gone.

Nothing is run here; test_readme.py and docs/test_pages_run.py run the examples.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "selfrag" / "demo" / "adapter" / "README.md",
]
BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", flags=re.M | re.S)
CODE = re.compile(r"(?:scripts|selfrag|critic|retrieval)/[\w/]+\.py")


def commands(page: Path) -> list[str]:
    """Lines of the page's shell blocks that call our programs; continued lines are joined."""
    found = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            text = re.split(r" [|>] ", line.removeprefix("$ "))[0].strip()
            if text.startswith(("selfrag ", "critic ")):
                found.append(text)
    return found


CASES = [
    pytest.param(command, id=f"{page.parent.name}-{page.stem}: {command[:60]}")
    for page in PAGES
    for command in commands(page)
]


@pytest.mark.parametrize("command", CASES)
def test_a_command_in_a_document_is_understood(command: str) -> None:
    program, *words = shlex.split(command, comments=True)
    node = typer.main.get_command(import_module(f"{program}.cli.main").app)
    context = node.make_context(program, list(words), resilient_parsing=True)
    while hasattr(node, "get_command"):
        name, *words = words
        node = node.get_command(context, name)
        assert node is not None, f"no command {name!r}"
        group = hasattr(node, "get_command")
        context = node.make_context(name, list(words), parent=context, resilient_parsing=group)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_files_of_code_that_a_document_names_exist(page: Path) -> None:
    for file in CODE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "draw_rooms.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
