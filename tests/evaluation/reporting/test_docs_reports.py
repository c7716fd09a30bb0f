"""docs/guides/reports.md is executed: its Python and its commands, on runs of the scripted engine."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from selfrag.cli.main import main

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "guides" / "reports.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory as the page has it."""
    for run, name in zip(runs, ("selfrag-adaptive", "rag-1"), strict=True):
        made = Path(shutil.copytree(run, tmp_path / "runs" / name))
        manifest = json.loads((made / "manifest.json").read_text())
        manifest["identity"]["name"] = name
        (made / "manifest.json").write_text(json.dumps(manifest))
    for name in ("sweep", "ablation"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").write_text(f"# {name.capitalize()}\n")
        (tmp_path / name / f"{name}.json").write_text('{"commit": "0", "time": "now"}')
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_python_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for body in re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.M | re.S):
        exec(compile(body, "reports.md", "exec", dont_inherit=True), namespace)  # the point of this test
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert (folder / "report.html").stat().st_size > 10_000
    assert (folder / "plots.png").exists()


def test_its_commands_run(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        line for block in re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.M | re.S) for line in block.splitlines()
    ]
    assert len(lines) == 4
    for line in lines:
        program, *words = shlex.split(line)
        if program == "selfrag":
            assert main(words) == 0, line
            continue
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        assert ended.value.code == 0, capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} >= {"report.html", "tables.md", "tables.csv", "plots.svg"}
    shown = (folder / "docs" / "records" / "results.md").read_text()
    assert "## 2 systems on short, long" in shown
    assert "differences to selfrag-adaptive" in shown
    assert "## Ablation" in shown
