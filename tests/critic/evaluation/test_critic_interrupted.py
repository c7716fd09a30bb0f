"""An evaluation killed at any point and started again ends with the same bytes, and asks no model twice."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from critic import evaluation
from critic.cases import Case, Labelled
from critic.evaluation import MAJORITY, PROMPTED, Subjects, report, run_evaluation
from critic.student.judge import StudentCritic
from critic.student.prompt import Prompt
from critic.teacher.forms import OWN
from retrieval.passage import Passage
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import UserError
from selfrag.jsonl import write_jsonl
from selfrag.reflection.judgment import Judgment

ROWS = [
    Labelled(f"r{i}", Case("IsRel", f"Question {i}?", evidence=Passage("p", "Text.")), label, "set", "human", "rule")
    for i, label in enumerate(("Relevant", "Irrelevant") * 3)
]
"""Of which CHUNK=4 makes two chunks, of 4 and of 2."""


class Kept:
    """The prompts of a test: two of the rows do not fit."""

    eos_id, max_length = 0, 10

    def prompt(self, case: Case) -> Prompt:
        return Prompt((1,), ((2,), (3,)), {"evidence": 5} if case.instruction in ("Question 1?", "Question 5?") else {})


class World:
    """A folder with rows and two models: which were opened, and how many cases each call asked."""

    def __init__(self, folder: Path) -> None:
        self.rows, self.out = folder / "rows.jsonl", folder / "out" / "figures.json"
        self.journal = folder / "out" / "figures.json.journal"
        write_jsonl(self.rows, [row.as_dict() for row in ROWS])
        for name in ("critic", "base"):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text("{}")
        self.subjects = Subjects(folder / "critic", folder / "base", self.rows, "transformers")

    def load(self, model, *_):
        self.opened.append(Path(model).name)
        return StudentCritic(ScriptedEngine(None, 0), Kept())

    def judge(self, cases):
        """Numbers that depend on how many cases are asked at once."""
        self.asked.append(len(cases))
        if len(self.asked) == self.killed:
            raise KeyboardInterrupt
        start = 0.6 if len(cases) == 4 else 0.3
        shares = [start + int(case.instruction.split()[1][:-1]) / 100 for case in cases]
        judged = [Judgment(case.labels, "case", (p, 1 - p), 0.5) for case, p in zip(cases, shares, strict=True)]
        return [None if case.instruction == "Question 3?" else one for case, one in zip(cases, judged, strict=True)]

    def run(self, killed=0):
        """Until the call of this number, from 1, which does not come back."""
        self.opened, self.asked, self.killed = [], [], killed
        return run_evaluation(self.rows, self.subjects, out=self.out)

    def kill(self, at):
        with pytest.raises(KeyboardInterrupt):
            self.run(killed=at)


class Noon(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def world(tmp_path, monkeypatch):
    world, ticks = World(tmp_path), itertools.count()
    monkeypatch.setattr(evaluation, "CHUNK", 4)
    monkeypatch.setattr(evaluation, "datetime", Noon)
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(evaluation, "load_critic", world.load)
    monkeypatch.setattr(evaluation, "_otherwise", world.load)
    monkeypatch.setattr(StudentCritic, "judge", lambda critic, cases: world.judge(cases))
    return world


@pytest.fixture
def whole(world):
    """What an evaluation writes that nothing interrupts."""
    world.run()
    assert world.asked == [4, 2, 4, 2]
    assert list(world.out.parent.iterdir()) == [world.out]
    content = world.out.read_bytes()
    shutil.rmtree(world.out.parent)
    return content


def test_the_figures_are_those_of_the_chunks_and_shortened_rows_are_counted(world, whole):
    written = json.loads(whole)
    assert written["judgments"]["critic"]["r2"] == pytest.approx({"Relevant": 0.62, "Irrelevant": 0.38})
    assert written["judgments"]["critic"]["r3"] is None
    assert written["judgments"]["critic"]["r4"] == pytest.approx({"Relevant": 0.34, "Irrelevant": 0.66})
    # r0 and r2 are called Relevant and are, r5 Irrelevant; r1 is wrong, r3 has no judgment, r4 is wrong.
    assert written["critics"]["critic"]["groups"]["IsRel"]["accuracy"]["value"] == 0.5
    assert written["critics"]["critic"]["seconds"] == 2.0  # one tick a chunk
    assert written["judgments"][PROMPTED] == written["judgments"]["critic"]
    assert written["critics"][PROMPTED]["shortened"] == 2
    assert "shortened" not in written["critics"][MAJORITY]
    told = f"\nRows with a part shortened to fit the prompt: critic 2 of 6; {PROMPTED} 2 of 6.\n"
    assert told in report(world.run(), "critic")


@pytest.mark.parametrize(
    ("killed", "opened", "asked"),
    [
        (1, ["critic", "base"], [4, 2, 4, 2]),
        (2, ["critic", "base"], [2, 4, 2]),
        (3, ["base"], [4, 2]),
        (4, ["base"], [2]),
    ],
)
def test_killed_in_any_chunk_it_goes_on_with_that_chunk(world, whole, killed, opened, asked):
    world.kill(killed)
    world.run()
    assert (world.opened, world.asked) == (opened, asked)
    assert world.out.read_bytes() == whole
    assert list(world.out.parent.iterdir()) == [world.out]


def test_killed_after_the_last_figures_it_asks_nobody(world, whole, monkeypatch):
    def last(path, value):
        write(path, value)
        if MAJORITY in value["critics"]:
            raise KeyboardInterrupt

    write = evaluation.write_json
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_json", last)
        world.kill(0)
    assert world.journal.exists()
    world.run()
    assert (world.opened, world.asked) == ([], [])
    assert world.out.read_bytes() == whole
    assert not world.journal.exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda world, patch: write_jsonl(world.rows, [row.as_dict() for row in ROWS[:5]]), "rows"),
        (lambda world, patch: (world.subjects.critic / "critic.json").write_text("{}"), "critic"),
        (lambda world, patch: patch.setattr("critic.teacher.forms.OWN", replace(OWN, forms={})), "prompt"),
        (lambda world, patch: patch.setattr(evaluation, "CHUNK", 3), "chunk"),
    ],
)
def test_the_journal_of_another_evaluation_is_refused(world, monkeypatch, change, named):
    world.kill(2)
    before = world.journal.read_bytes()
    change(world, monkeypatch)
    said = rf"journal holds judgments of an evaluation with other {named}: give the same settings .* remove it"
    with pytest.raises(UserError, match=said):
        world.run()
    assert (world.opened, world.journal.read_bytes()) == ([], before)
