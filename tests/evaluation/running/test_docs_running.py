"""docs/experiments/running.md is executed; every task, protocol and system is on it, and so is what a run leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reproduction.steps import write_samples
from reproduction.table2 import ROWS
from selfrag.evaluation.presets import PRESETS
from selfrag.evaluation.systems import SYSTEMS

TEXT = (Path(__file__).parents[3] / "docs" / "experiments" / "running.md").read_text(encoding="utf-8")
(PYTHON,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.M | re.S)


def test_every_name_is_on_the_page() -> None:
    protocols = {name for one in PRESETS.values() for name in one.protocols}
    assert [name for name in (*PRESETS, *SYSTEMS, *protocols) if f"`{name}`" not in TEXT] == []
    assert f"the {len(ROWS)} rows of the paper's main table" in TEXT


@pytest.mark.engine
def test_its_example_runs(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    row = {"id": "1", "task": "short_qa", "instruction": "Who?", "answers": ["Ann"], "passages": []}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    write_samples(tmp_path)["asqa"].rename(tmp_path / "asqa.json")
    monkeypatch.chdir(tmp_path)
    assert PYTHON.count('Model("demo")') == 1  # the one thing that is not as on the page: a model of this machine
    code = PYTHON.replace('Model("demo")', f'Model({str(tiny_llama)!r}, "transformers")')
    exec(compile(code, "running.md", "exec", dont_inherit=True), {"__name__": "__docs__"})  # the point of this test
    assert capsys.readouterr().out == "1\n"
    files = {
        path.relative_to(tmp_path / "runs").as_posix() for path in (tmp_path / "runs").rglob("*") if path.is_file()
    }
    left = {"manifest.json", *(f"{name}{end}" for name in ("own", "asqa") for end in (".jsonl", ".log.jsonl"))}
    assert files == {f"{run}/{name}" for run in ("adaptive", "top-1") for name in left}
