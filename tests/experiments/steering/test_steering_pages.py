"""What a sweep writes: tables, sentences, pictures and a manifest, from a study of the scripted model."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import closed, executed, job, scripted, short

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.comparison import Comparison
from selfrag.evaluation.metrics.fluency import FLUENCY
from selfrag.evaluation.presets import preset
from selfrag.experiments.steering.choosing import Goal
from selfrag.experiments.steering.results import measured_by, system_runs
from selfrag.experiments.steering.setting import Axis
from selfrag.experiments.steering.study import study
from selfrag.experiments.steering.sweep import Sweep, Swept, based, found_in
from selfrag.experiments.steering.writing import sources, write_sweep

AXES = (Axis.parse("isuse=4"), Axis.parse("threshold=0,0.5,1"))


def swept(folder: Path) -> Swept:
    """Two files under every setting."""
    what = Sweep({"passages": 2}, AXES, goal=Goal.parse("headline,retrieval_rate<=0.6"))
    files = [measured_by(file, FLUENCY) for file in (short(12), closed(6))]
    plans = what.plans([file.task for file in files])
    studies = [
        study(job(folder), file, one.settings, executed(scripted())) for file, one in zip(files, plans, strict=True)
    ]
    return found_in(what, plans, studies, system_runs(studies))


def figure(found: Comparison, system: str, metric: str) -> float | None:
    (row,) = [row for row in found.tables[0].rows if row.system == system]
    estimate = row.figures[metric]
    return None if estimate is None else estimate.value


def test_pages_say_what_was_found(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    found = swept(tmp_path)
    assert figure(found.comparison, "threshold=0", "retrieval_rate") == 1
    assert figure(found.comparison, "threshold=1", "retrieval_rate") == 0
    paths = write_sweep(found, tmp_path, {"model": "scripted", "files": sources(found.studies)})
    assert all(path.is_file() for path in paths)
    page = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert "Model scripted, base policy weights isrel=1,issup=1,isuse=0.5, passages=2." in page
    assert "90 answers: 90 replayed" in page  # 5 settings, 18 items
    assert (
        "threshold 0 to 1: retrieval_rate -100.0 [-100.0, -100.0] n=12; in the paper it falls: as in the paper" in page
    )
    assert "goal contains,retrieval_rate<=0.6: " in page
    assert "![short-threshold](plots/short-threshold.svg)" in page
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["system"] for row in rows} == {one.name for one in found.plans[0].settings}
    values = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert {"commit", "versions", "time", "trends", "choices", "saved", "settings"} <= set(values)
    assert values["settings"]["closed"]["isuse=4"]["weights"]["isuse"] == 4
    assert values["series"]["short"]["threshold"] == [[0, "threshold=0"], [0.5, "threshold=0.5"], [1, "threshold=1"]]
    assert values["files"]["short"] == {"sha256": "0" * 64, "rows": 12, "items": 12}


def test_the_base_of_a_published_task_is_its_own() -> None:
    task = preset("asqa").task("official")
    published = preset("asqa").settings("official")
    assert published["mode"] == "always"
    assert based({}, task) == Decoding(**published)
    assert based({"mode": "never"}, task) == Decoding(**published | {"mode": "never"})
    plans = Sweep(axes=AXES).plans([task, short(1).task])
    names = [[setting.name for setting in one.settings] for one in plans]
    assert names[0] == names[1]  # so that both files stand in one table
