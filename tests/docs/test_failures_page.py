"""Each row of the page of failures names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/failures.md"
_ROW = re.compile(r"\| `(tests/[\w/]+\.py)::(\w+)` \|$")


def _rows() -> list[str]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return rows[1:]  # without the header


def test_every_row_names_a_test_that_exists():
    for row in _rows():
        match = _ROW.search(row)
        assert match, f"no test at the end of: {row}"
        module = ast.parse((ROOT / match[1]).read_text())
        functions = {
            node.name
            for node in ast.walk(module)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert match[2] in functions, row


def test_no_situation_stands_twice():
    rows = _rows()
    assert len(set(rows)) == len(rows)
