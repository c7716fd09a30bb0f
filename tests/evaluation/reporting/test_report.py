"""`selfrag eval report`, as it is typed, and the items that a page shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from retrieval.errors import UserError
from selfrag.cli.main import main
from selfrag.evaluation.comparison import read_runs
from selfrag.evaluation.report import read_cases


@pytest.mark.parametrize(("width", "columns"), [(80, 0), (120, 2), (190, 3)])
def test_a_directory_of_runs_is_enough_and_a_terminal_gets_what_it_has_room_for(
    runs: list[Path], capsys, monkeypatch, width: int, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    command = ["eval", "report", str(runs[0].parent), "--only", "short", "--against", "finetuned"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert "[100.0, 100.0]" in shown  # an interval is never broken
    assert "long (" not in shown
    assert sum(name in shown for name in ("recall", "s/item", "searches")) == columns


def test_what_cannot_be_done_is_one_line(runs: list[Path], tmp_path: Path, capsys) -> None:
    for words, said in (
        ([str(tmp_path / "none")], "holds no run: manifest.json is missing"),
        ([*map(str, runs), "-o", "page.doc"], "cannot tell what to write; the file must end in .html"),
        ([*map(str, runs), "--against", "ours"], "no run of a system called 'ours'"),
        ([*map(str, runs), "--only", "third"], "has no third; it has short, long"),
        ([str(runs[0]), "-o", "/proc/none/page.html"], "cannot write"),
    ):
        assert main(["eval", "report", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.fixture
def copied(runs: list[Path], tmp_path: Path) -> list[Path]:
    """The same runs, free to be damaged; their manifests name the data files of the first ones."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in runs]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_failed_items_come_first_and_the_rest_is_a_seeded_sample(runs: list[Path]) -> None:
    found = read_runs(runs)
    (short, long), again = read_cases(found, 3, seed=1), read_cases(found, 3, seed=1)
    assert [case.id for case in short.cases] == [case.id for case in again[0].cases]
    assert "short_qa-5" in [case.id for case in short.cases]
    assert (len(short.cases), short.items, len(long.cases), long.items) == (3, 8, 3, 3)
    ours, other = next(case for case in short.cases if case.id == "short_qa-5").outcomes
    assert (ours.output.text, ours.output.segments, ours.share) == ("Paris.", (("Paris.", "d1"),), 1.0)
    assert ours.trace.question == "Question 5?"
    assert "no memory left" in str(other.error)
    assert (other.output.text, other.share, other.trace) == ("", 0.0, None)
    with pytest.raises(UserError, match="-1 items; 0 or more"):
        read_cases(found, -1)


def test_a_data_file_that_is_gone_or_changed_is_said(copied: list[Path]) -> None:
    manifest = json.loads((copied[0] / "manifest.json").read_text())
    before = Path(manifest["files"]["short"]["path"])
    for text, said in (("", "is not there; say where it is now with --data"), ("{}\n", "has changed since")):
        path = copied[0] / "moved" / before.name
        path.parent.mkdir(exist_ok=True)
        if text:
            path.write_text(text)
        manifest["files"]["short"]["path"] = str(path)
        (copied[0] / "manifest.json").write_text(json.dumps(manifest))
        short, long = read_cases(read_runs(copied), 2)
        assert said in str(short.note)
        assert long.note is None
        assert all(case.item is None for case in short.cases)
        moved = read_cases(read_runs(copied), 2, data=before.parent)[0]
        assert moved.note is None
        assert all(case.item is not None for case in moved.cases)


def test_a_damaged_trace_spoils_only_itself(copied: list[Path]) -> None:
    path = copied[0] / "short.jsonl"
    records = lines(path)
    records[0]["trace"] = {"question": "Q"}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    first, second = [case.outcomes[0] for case in read_cases(read_runs(copied), 99)[0].cases][:2]
    assert first.trace is None
    assert "no trace in JSON" in str(first.damage)
    assert second.trace.question == "Question 1?"
    path.write_text("".join(json.dumps(one) + "\n" for one in (*records[:2], records[2] | {"read": 3}, *records[3:])))
    with pytest.raises(UserError, match=r"short\.jsonl:3: .*'short_qa-2' is no record of an answer"):
        read_cases(read_runs(copied), 99)
