"""docs/experiments/steering.md: its Python runs over a study of the scripted model; its rows are those there are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import executed, job, scripted, short

from selfrag.decoding.policy import Decoding
from selfrag.experiments.steering.setting import Setting
from selfrag.experiments.steering.study import study
from selfrag.experiments.steering.table3a import ablations

PAGE = (Path(__file__).parents[3] / "docs" / "experiments" / "steering.md").read_text(encoding="utf-8")


def test_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [Setting("base", Decoding()), Setting("never", Decoding(mode="never"))]
    file = short(3)
    study(job(tmp_path / "study"), file, settings, executed(scripted()))
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    exec(compile(block, "steering.md", "exec"), {"__name__": "__docs__"})  # the point of this test
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert all(line.split()[1] == "True" for line in lines)


def test_the_page_lists_the_rows_there_are() -> None:
    table = PAGE.partition("## Ablations")[2]
    assert re.findall(r"^\| `([\w-]+)` \|", table, flags=re.M) == [
        setting.name for setting in ablations(Decoding(), short(1).task)
    ]
