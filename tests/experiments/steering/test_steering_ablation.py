"""Ablations against the paper: verdicts by hand, and the page of a study of the scripted model."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from steered import closed, executed, job, scripted, short

from selfrag.decoding.policy import Decoding
from selfrag.evaluation.intervals import Estimate
from selfrag.experiments.steering.ablate import Ablated
from selfrag.experiments.steering.ablate_writing import write_ablation
from selfrag.experiments.steering.ablation_verdicts import Ablation, ablations_against
from selfrag.experiments.steering.results import comparison, system_runs
from selfrag.experiments.steering.saving import saved
from selfrag.experiments.steering.study import study
from selfrag.experiments.steering.table3a import ablations


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (Estimate(-0.2, -0.3, -0.1, 9), "as in the paper"),
        (Estimate(0.2, 0.1, 0.3, 9), "against the paper"),
        (Estimate(-0.2, -0.3, 0.0, 9), "not told apart"),
        (None, "undefined"),
    ],
)
def test_a_row_is_below_the_whole_in_the_paper(difference: Estimate | None, verdict: str) -> None:
    one = Ablation("hard-constraints", "nq", 3, 9, difference)
    assert one.verdict == verdict
    assert one.published == (-17.2, -0.9)
    assert one.cells()[2] == "3 of 9"
    assert Ablation("retrieve-top-1", "average", None, None, difference).published == (-3.7, -0.4, -3.5)


def test_the_page_has_a_verdict_for_every_row_and_says_what_each_row_is(tmp_path: Path) -> None:
    files = (short(12), closed(6))
    studies = [study(job(tmp_path), one, ablations(Decoding(), one.task), executed(scripted())) for one in files]
    tables = comparison(studies, system_runs(studies))
    found = ablations_against(tables, studies)
    assert [one.file for one in found] == ["short", "closed", "average"] * 4
    whole, never = (studies[0].outcomes[name] for name in ("selfrag", "no-retrieval"))
    said = [[one.output and (one.output.text, one.output.cited) for one in row] for row in (whole, never)]
    assert found[0].changed == sum(a != b for a, b in zip(*said, strict=True)) > 0
    (row,) = (row for row in tables.tables[0].rows if row.system == "no-retrieval")
    assert found[0].difference == row.differences["contains"]

    long = replace(tables.tables[0], metrics=("words", "contains"))
    (first, *_) = ablations_against(replace(tables, tables=(long, *tables.tables[1:])), studies)
    assert (first.difference, first.verdict) == (None, "undefined")  # fewer words are nothing lost

    write_ablation(Ablated(tuple(studies), tables, {}, saved(studies)), tmp_path, {"model": "/models/mine"})
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    assert "Model mine, base policy weights" in page  # no folder of this machine on a page
    assert f"| no-retrieval | short | {found[0].changed} of 12 | " in page
    assert "- no-retrieval: weights isrel=1,issup=1,isuse=0.5, mode=never\n" in page
    assert "smaller the surer" in page
    assert len(json.loads((tmp_path / "ablation.json").read_text(encoding="utf-8"))["verdicts"]) == 12
