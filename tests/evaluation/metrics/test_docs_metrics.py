"""docs/experiments/metrics.md is executed; every metric and judge is on it."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from selfrag.evaluation.metrics.registry import JUDGED, METRICS, PARAMETRIC

TEXT = (Path(__file__).parents[3] / "docs" / "experiments" / "metrics.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, flags=re.M | re.S)


def test_every_metric_is_on_the_page() -> None:
    missing = [name for name in (*METRICS, *PARAMETRIC, *JUDGED) if f"`{name}`" not in TEXT]
    assert missing == []


def test_what_the_page_imports_exists() -> None:
    imported = [node for kind, body in BLOCKS if kind in ("python", "py") for node in ast.walk(ast.parse(body))]
    names = [(node.module, alias.name) for node in imported if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert names
    for module, name in names:
        assert hasattr(importlib.import_module(str(module)), name), f"{module}.{name}"


def test_its_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for kind, body in BLOCKS:
        if kind == "python":
            exec(compile(body, "metrics.md", "exec", dont_inherit=True), namespace)  # the point of this test
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "str_em 0.75"
    assert printed[1] == "str_hit 0.5"
    assert f"prints `{printed[-1]}`" in TEXT
