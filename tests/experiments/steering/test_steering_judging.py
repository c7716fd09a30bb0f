"""Settings as run directories, and a judge who is asked once about what they share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import closed, executed, job, scripted, short

from selfrag.cli.main import main
from selfrag.decoding.policy import Decoding
from selfrag.evaluation.comparison import read_runs
from selfrag.evaluation.metrics.fluency import FLUENCY
from selfrag.evaluation.metrics.registry import ratio
from selfrag.experiments.steering.answers import write_answers
from selfrag.experiments.steering.judging import judge_settings
from selfrag.experiments.steering.results import brief, comparison, measured_by, system_runs
from selfrag.experiments.steering.setting import Axis, plan
from selfrag.experiments.steering.study import study


class Short:
    """Believes what is short."""

    name = "short"
    asked: list[tuple[str, str]]

    def __init__(self) -> None:
        self.asked = []

    def identity(self) -> Mapping[str, Any]:
        return {"kind": "short"}

    def entails(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.asked += pairs
        return [len(hypothesis.split()) < 4 for _, hypothesis in pairs]


def test_settings_become_runs_that_say_what_the_study_says(tmp_path: Path) -> None:
    files = [measured_by(file, FLUENCY) for file in (short(10), closed(4))]
    settings = plan(Decoding(), (Axis.parse("issup=0,4"), Axis.parse("threshold=0,1"))).settings
    studies = [study(job(tmp_path), file, settings, executed(scripted())) for file in files]
    folders = write_answers(job(tmp_path), studies, tmp_path / "settings")
    read, made = read_runs(folders), system_runs(studies)
    assert [run.name for run in read] == [run.name for run in made] == [one.name for one in settings]
    for one, other in zip(read, made, strict=True):
        assert {name: file.scores for name, file in one.files.items()} == {
            name: file.scores for name, file in other.files.items()
        }
    judge = Short()
    needed = judge_settings(studies, folders, judge, tmp_path, {})
    assert 0 < len(judge.asked) < needed
    assert len(set(judge.asked)) == len(judge.asked)
    before = len(judge.asked)
    assert judge_settings(studies, write_answers(job(tmp_path), studies, tmp_path / "settings"), judge, tmp_path, {})
    assert len(judge.asked) == before
    second = Short()
    second.identity = lambda: {"kind": "short", "files": "others"}  # type: ignore[method-assign]
    judge_settings(studies, folders, second, tmp_path, {})  # a second judge of the same study has verdicts of its own
    assert len(second.asked) == before
    again = read_runs(folders)
    column = "citation_precision_nli (short)"
    figures = {run.name: ratio(run.files["short"].scores[column]) for run in again}
    assert figures["threshold=1"] == 0  # nothing is cited without evidence
    assert figures["base"] is not None
    tables = brief(comparison(studies, again)).tables
    assert [table.metrics for table in tables] == [
        ("contains", "citation_precision", "retrieval_rate", "words", column),
        ("accuracy", "citation_precision", "retrieval_rate"),
    ]


def test_an_unknown_judge_is_refused_before_anything_is_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "q", "task": "short_qa", "instruction": "who?", "answers": ["Ann"]}
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(row | {"id": name}) + "\n" for name in "ab"))
    out = tmp_path / "study"
    assert main(["sweep", str(path), "--out", str(out), "--judge", "oracle", "--model", str(tmp_path / "none")]) == 2
    assert "unknown judge 'oracle'" in capsys.readouterr().err
    assert not out.exists()
