"""Ablations against the paper on a study of the scripted model, and the page docs/experiments/steering.md."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from studied import closed, executed, job, scripted, short

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.intervals import NONE, bracketed
from selfrag.experiments.ablations import Ablated, ablations, against_paper, write_ablation
from selfrag.experiments.studies import Setting, study
from selfrag.experiments.sweeps import comparison, system_runs

PAGE = (Path(__file__).parents[2] / "docs" / "experiments" / "steering.md").read_text(encoding="utf-8")


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


def test_the_page_says_what_each_row_is_and_changes(tmp_path: Path) -> None:
    files = (short(12), closed(6))
    studies = [study(job(tmp_path), one, ablations(Decoding(), one.task), executed(scripted())) for one in files]
    tables = comparison(studies, system_runs(studies))
    rows = against_paper(tables, studies)
    assert [row[1] for row in rows] == ["short", "closed", "average"] * 4
    assert rows[0][4] == "-20.8, -0.5"
    whole, never = (studies[0].outcomes[name] for name in ("selfrag", "no-retrieval"))
    said = [[one.output and (one.output.text, one.output.cited) for one in row] for row in (whole, never)]
    changed = sum(a != b for a, b in zip(*said, strict=True))
    assert changed > 0
    assert rows[0][2] == f"{changed} of 12"
    (row,) = (row for row in tables.tables[0].rows if row.system == "no-retrieval")
    assert rows[0][3] == bracketed(row.differences["contains"])

    long = replace(tables.tables[0], metrics=("words", "contains"))
    counted = against_paper(replace(tables, tables=(long, *tables.tables[1:])), studies)
    assert counted[0][3] == NONE  # fewer words are nothing lost

    write_ablation(Ablated(tuple(studies), tables, {}), tmp_path, {"model": "/models/mine"})
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    assert "Model mine, base policy weights" in page  # no folder of this machine on a page
    assert f"| no-retrieval | short | {changed} of 12 | " in page
    assert "- no-retrieval: weights isrel=1,issup=1,isuse=0.5, mode=never\n" in page
    assert "smaller the surer" in page
    assert "official" in json.loads((tmp_path / "ablation.json").read_text(encoding="utf-8"))["settings"]["short"]
