"""Several systems and files in one run, two processes on one folder, and records that are more than memory holds."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted_run import FILE, ITEMS, Slow, job, reply, start
from written import PROMPTING

from retrieval.atomic import locked_directory
from retrieval.errors import UserError
from selfrag.evaluation.baselines import FineTuned
from selfrag.evaluation.records import RecordFile, Spent, read_records
from selfrag.evaluation.runner import answer_here, run, run_all

OTHER = replace(FILE, name="other", items=ITEMS[:7])


def two(folder: Path) -> list[Any]:
    first = replace(job(folder / "a"), identity={"name": "a"})
    second = replace(job(folder / "b"), identity={"name": "b"}, system=FineTuned(PROMPTING, 1))
    return [first, second]


def test_all_systems_and_files_are_run_and_kept_apart(tmp_path: Path) -> None:
    results = run_all(two(tmp_path), [FILE, OTHER], answer_here(lambda: Slow(reply, 0.0)))
    assert [list(found) for found in results] == [["set", "other"]] * 2
    assert [found["other"]["items"] for found in results] == [7, 7]
    for name in ("a", "b"):
        assert [one["id"] for one in read_records(tmp_path / name / "other.jsonl")] == [i.id for i in ITEMS[:7]]


def test_another_configuration_stops_before_anything_is_answered(tmp_path: Path) -> None:
    start(tmp_path / "b")

    def never() -> Any:
        raise AssertionError("nothing may be answered")

    with pytest.raises(UserError, match="holds a run with another"):
        run_all(two(tmp_path), [FILE], answer_here(never))
    assert not (tmp_path / "a" / "set.log.jsonl").exists()


def test_a_folder_that_is_being_written_is_refused(tmp_path: Path) -> None:
    with locked_directory(tmp_path / "r"), pytest.raises(UserError, match="another process is writing"):
        start(tmp_path / "r")
    assert start(tmp_path / "r")["set"]["items"] == len(ITEMS)


def test_lone_surrogates_in_what_others_wrote_are_kept(tmp_path: Path) -> None:
    records = RecordFile(tmp_path, "set")
    records.append({"id": "a\ud800", "scores": {}, "text": "x\udfff", "error": None}, Spent(1.0))
    assert RecordFile(tmp_path, "set").done == {"a\ud800"}
    assert records.finish(["a\ud800"])["items"] == 1
    assert read_records(tmp_path / "set.jsonl")[0]["text"] == "x\udfff"


def test_records_stay_on_disk(tmp_path: Path) -> None:
    records = RecordFile(tmp_path, "set")
    for number in range(3):
        records.append({"id": str(number), "scores": {}, "error": None, "trace": "t" * 10_000}, Spent(0.5, 2))
    assert all("t" * 100 not in repr(value) for value in vars(records).values())
    assert records.finish(["2", "0", "1"]) == {"items": 3, "failed": 0, "seconds": 1.5, "cached_tokens": 6}
    assert [one["id"] for one in read_records(tmp_path / "set.jsonl")] == ["2", "0", "1"]
    assert run(job(tmp_path), [], lambda: None) == {}  # type: ignore[arg-type,return-value]


def test_the_eta_goes_by_what_this_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path / "a")
    (tmp_path / "a" / "set.jsonl").unlink()
    log = tmp_path / "a" / "set.log.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:50]))
    bars: list[tqdm] = []
    shown = io.StringIO()
    monkeypatch.setattr("tqdm.tqdm", lambda **options: bars.append(tqdm(**options | {"file": shown})) or bars[-1])
    monkeypatch.setattr(shown, "isatty", lambda: True)
    run(job(tmp_path / "a"), [FILE], lambda: Slow(reply, 0.0))
    assert [(one.n, one.initial, one.total) for one in bars] == [(60, 50, 60)]
