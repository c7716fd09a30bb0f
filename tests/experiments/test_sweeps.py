"""Sweeps and ablations: axes, the best setting under a constraint, pages, pictures, run directories, judges."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from studied import closed, executed, job, scripted, short
from tiny_judges import Ruled
from written import passages

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.comparison import read_runs
from selfrag.evaluation.intervals import Estimate, bracketed
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.answers import (
    FLUENCY,
    FROM_MEMORY,
    FROM_MEMORY_SUBSTRING,
    REPEATED,
    UNCITED,
    UNSEEN,
)
from selfrag.evaluation.metrics.registry import ratio
from selfrag.experiments.ablations import TRAINED, Ablated, ablations, against_paper, write_ablation
from selfrag.experiments.best_setting import Goal, Limit, choose, halves
from selfrag.experiments.studies import study, write_answers
from selfrag.experiments.sweep_plots import normalised, places_of
from selfrag.experiments.sweeps import (
    Axis,
    Sweep,
    brief,
    comparison,
    judge_settings,
    measured_by,
    plan,
    sources,
    sweep_files,
    system_runs,
    write_sweep,
)
from selfrag.reflection.weights import Weights


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("threshold=0:0.3:0.1", (0.0, 0.1, 0.2, 0.3)),
        ("threshold=0.2,none", (0.2, None)),
        ("mode=always, never", ("always", "never")),
        ("no_retrieval_branch=true,false", (True, False)),
        ("sup=1", "axis 'sup': known are isrel, issup, isuse"),
        ("max_segments=1,2", "axis 'max_segments': known are"),
        ("issup=1,1", "give at least one value, and each once"),
        ("threshold=0:1:1e-9", "a span of 1000000001 values; give 1 to 1000"),
    ],
)
def test_an_axis_is_read_or_refused_in_one_line(text: str, values: tuple[Any, ...] | str) -> None:
    if isinstance(values, tuple):
        assert Axis.parse(text).values == values
    else:
        with pytest.raises(UserError, match=values):
            Axis.parse(text)


def test_each_axis_alone_or_every_combination() -> None:
    axes = (Axis.parse("issup=0,1"), Axis.parse("threshold=0.2,none"))
    alone = plan(Decoding(), axes)
    assert [one.name for one in alone.settings] == ["base", "issup=0", "threshold=none"]
    assert alone.series == {
        "issup": ((0, "issup=0"), (1, "base")),
        "threshold": ((0.2, "base"), (None, "threshold=none")),
    }
    assert alone.settings[1].decoding == Decoding(weights=Weights(issup=0))
    grid = plan(Decoding(), axes, grid=True)
    assert [one.name for one in grid.settings] == [
        "base",
        "issup=0,threshold=0.2",
        "issup=0,threshold=none",
        "issup=1,threshold=none",
    ]
    with pytest.raises(UserError, match="axis issup is given twice"):
        plan(Decoding(), (axes[0], axes[0]))
    with pytest.raises(UserError, match="axis issup: 'high' is not a number"):
        plan(Decoding(), (Axis.parse("issup=high"),))


ITEM = Item("q", "Who?", True, passages("d1", "d2"), answers=("d1", "Ann", "Bob"), references=("Ann",), task="short_qa")


@pytest.mark.parametrize(
    ("text", "memory", "unseen"),
    [
        ("It was d1.", (0.0, 1.0), (1.0, 1.0)),  # in a passage that was not read
        ("It was Ann.", (1.0, 1.0), (1.0, 1.0)),  # right, and in none
        ("Ann or d1", (0.0, 1.0), (1.0, 1.0)),  # one of the answers given stands in a passage
        ("Nobody", (0.0, 0.0), (0.0, 0.0)),  # wrong: does not count
    ],
)
def test_reliance_on_memory(text: str, memory: tuple[float, float], unseen: tuple[float, float]) -> None:
    said = Output(text, read=("d2",), retrieved=True)
    assert FROM_MEMORY.part(ITEM, said) == memory
    assert UNSEEN.part(ITEM, said) == unseen
    assert UNCITED.part(ITEM, replace(said, cited=("d2",))) == (0.0, memory[0])
    for item in (replace(ITEM, answers=None), replace(ITEM, passages=())):
        assert FROM_MEMORY.part(item, said) is None
    assert FROM_MEMORY.part(ITEM, None) is None


def test_memory_by_substrings_as_the_paper_says_and_repeated_bigrams() -> None:
    """`Ann` is no word of the passage but a part of `Annex`: from memory by words, not by substrings (C.1)."""
    item = replace(ITEM, answers=("Ann",), passages=(Passage("d1", "The Annex.", ""),))
    assert FROM_MEMORY.part(item, Output("Ann")) == (1.0, 1.0)
    assert FROM_MEMORY_SUBSTRING.part(item, Output("Ann")) == (0.0, 1.0)
    assert REPEATED.part(ITEM, Output("To be or not to be")) == (1.0, 5.0)


def test_curves_are_normalised_and_close_values_stand_at_equal_steps() -> None:
    curve = [(0.5, Estimate(0.3, 0.2, 0.4, 9)), (0.0, Estimate(0.6, 0.5, 0.7, 9))]
    assert [(at, found.value, found.low) for at, found in normalised(curve)] == [
        (0.0, 1.0, pytest.approx(5 / 6)),
        (0.5, 0.5, pytest.approx(1 / 3)),
    ]
    assert list(normalised([(0.0, Estimate(0.0, 0.0, 0.0, 9))])) == list(normalised([])) == []
    assert places_of([0.999, 0, 1, 0.5]) == {0: 0, 0.5: 1, 0.999: 2, 1: 3}


def column(*values: float) -> list[tuple[float, float]]:
    return [(value, 1.0) for value in values]


def test_goals_and_what_they_fit() -> None:
    assert not Goal("headline", ()).fits("words", ["words"])  # of texts without a reference: more is not better
    assert Goal("words", ()).fits("words", ["words"])
    with pytest.raises(UserError, match="no file has all these figures"):
        Goal("headline", ()).check({"bios": ("words", ("words",), 9)})
    for text in ("headline,retrieval_rate<=0.4", "f1", "f1,words>=3,retrieval_rate<=0.5"):
        assert str(Goal.parse(text)) == text
    for text in ("", "f1,rate<0.4", "f1,rate<=1e"):
        with pytest.raises(UserError, match="write METRIC,METRIC<=NUMBER"):
            Goal.parse(text)


def test_the_best_is_chosen_on_one_half_and_measured_on_the_other() -> None:
    first, second = halves(8)

    def both(here: float, there: float) -> list[tuple[float, float]]:
        return column(*[here if i in first else there for i in range(8)])

    settings = {
        "base": {"acc": both(0.5, 0.5), "rate": both(1.0, 1.0)},
        "dear": {"acc": both(1.0, 1.0), "rate": both(0.9, 0.9)},
        "lucky": {"acc": both(0.9, 0.25), "rate": both(0.4, 0.8)},
        "solid": {"acc": both(0.8, 0.75), "rate": both(0.2, 0.2)},
        "also": {"acc": both(0.9, 0.9), "rate": both(0.4, 0.4)},
    }
    found = choose(settings, Goal("headline", (Limit("rate", "<=", 0.4),)), "base", "acc")
    assert (found.name, found.candidates, found.chosen_at) == ("lucky", 3, 0.9)
    assert (found.confirmed.value, found.confirmed.n) == (0.25, len(second))
    assert found.gain.value == -0.25
    assert not found.kept  # 0.8 on the other half
    assert found.as_dict()["limits"]["rate<=0.4"]["value"] == pytest.approx(0.8)
    alone = choose(settings, Goal("acc", ()), "base", "acc")
    assert (alone.name, alone.kept) == ("dear", True)
    none = choose(settings, Goal("acc", (Limit("rate", "<=", 0.1),)), "base", "acc")
    assert (none.name, none.candidates) == (None, 0)
    with pytest.raises(UserError, match="no figure 'f1' here; there are acc, rate"):
        choose(settings, Goal("f1", ()), "base", "acc")


AXES = (Axis.parse("isuse=4"), Axis.parse("threshold=0,0.5,1"))


def test_pages_say_what_was_found(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    what = Sweep({"passages": 2}, AXES, goal=Goal.parse("headline,retrieval_rate<=0.6"))
    files = [measured_by(file, FLUENCY) for file in (short(12), closed(6))]
    found = sweep_files(what, files, job(tmp_path), executed(scripted()))
    rates = {row.system: row.figures["retrieval_rate"].value for row in found.comparison.tables[0].rows}
    assert (rates["threshold=0"], rates["threshold=1"]) == (1, 0)
    paths = write_sweep(found, tmp_path, {"model": "scripted", "files": sources(found.studies)})
    assert all(path.is_file() for path in paths)
    page = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert "Model scripted, base policy weights isrel=1,issup=1,isuse=0.5, passages=2." in page
    assert "90 answers: 90 replayed" in page  # 5 settings, 18 items
    assert "goal contains,retrieval_rate<=0.6: " in page
    assert "![short-threshold](plots/short-threshold.svg)" in page
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["system"] for row in rows} == {one.name for one in found.plans[0].settings}
    values = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert {"commit", "versions", "time", "choices", "saved", "settings"} <= set(values)
    assert values["settings"]["closed"]["isuse=4"]["weights"]["isuse"] == 4
    assert values["series"]["short"]["threshold"] == [[0, "threshold=0"], [0.5, "threshold=0.5"], [1, "threshold=1"]]


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
    judge = Ruled(lambda _, claim: len(claim.split()) < 4, "short")
    judge_settings(studies, folders, judge, tmp_path)
    before = len(judge.asked)
    assert 0 < before == len(set(judge.asked))  # settings share answers, whose pairs are asked about once
    judge_settings(studies, write_answers(job(tmp_path), studies, tmp_path / "settings"), judge, tmp_path)
    assert len(judge.asked) == before
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


PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")


def test_the_page_says_what_each_row_is_and_changes(tmp_path: Path) -> None:
    whole, *others = (setting.name for setting in ablations(Decoding(), short(1).task))
    listed = re.findall(r"^\| `([\w-]+)` \|", PAGE.partition("## Ablations")[2], flags=re.M)
    assert listed == [whole, *TRAINED, *others]
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

    write_ablation(Ablated(tuple(studies), tables, {}), tmp_path, {"model": "/models/mine"})
    page = (tmp_path / "ablation.md").read_text(encoding="utf-8")
    assert "Model mine, base policy weights" in page  # no folder of this machine on a page
    assert f"| no-retrieval | short | {changed} of 12 | " in page
    assert "- no-retrieval: weights isrel=1,issup=1,isuse=0.5, mode=never\n" in page
    assert "smaller the surer" in page
    assert "official" in json.loads((tmp_path / "ablation.json").read_text(encoding="utf-8"))["settings"]["short"]
