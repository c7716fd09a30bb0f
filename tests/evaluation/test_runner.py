"""The runner: every item once, whatever happens. Kills are real: a process, SIGKILL, the same command again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_run import FILE, ITEMS, Slow, job, reply, start
from written import PROMPTING, scripted

from retrieval.atomic import locked_directory
from retrieval.errors import UserError
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import Reply
from selfrag.errors import EngineError
from selfrag.evaluation.baselines import FineTuned
from selfrag.evaluation.records import RecordFile, Spent, failures, read_records
from selfrag.evaluation.runner import Work, answer, record_of, run
from selfrag.evaluation.systems import Reflective
from selfrag.evaluation.task import SHORT

SCRIPT = Path(__file__).with_name("scripted_run.py")
ROOT = Path(__file__).parents[2]
KILLS = 6
FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from retrieval.errors import UserError
from scripted_run import start
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))  # bytes of any file: the kernel plays the full disk
try:
    start(Path(sys.argv[2]))
except UserError as error:
    sys.exit(f"one line: {error}")
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def recorded(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def no_engine() -> Any:
    raise AssertionError("nothing is left to run")


def test_a_run_records_every_item_in_order_and_counts_what_failed(tmp_path: Path) -> None:
    results = run(job(tmp_path), [FILE], lambda: Slow(reply, 0.0))
    records = read_records(tmp_path / "set.jsonl")
    assert [record["id"] for record in records] == [item.id for item in ITEMS]
    broken = records[5]
    assert "no memory" in broken["error"]
    assert broken["scores"]["contains"] == [0.0, 1.0]
    assert broken["scores"]["prompt_tokens"] is None
    assert [records[at]["scores"]["contains"] for at in (3, 4)] == [[1.0, 1.0], [0.0, 1.0]]
    assert {"items": len(ITEMS), "failed": 1}.items() <= results["set"].items()
    said = failures(tmp_path, results) or ""
    assert said.startswith(f"1 failed, such as {ITEMS[5].id} of set: ")
    assert "no memory" in said
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["files"]["set"]["result"] == results["set"]
    assert manifest["files"]["set"]["settings"]["task"]["new_tokens"] == 50
    assert manifest["identity"]["system"]["kind"] == "finetuned"
    assert {"commit", "time", "versions"} <= set(manifest["about"])


def test_killed_at_random_points_the_file_is_the_same(tmp_path: Path) -> None:
    start(tmp_path / "whole")
    killed = tmp_path / "killed"
    log = killed / "set.log.jsonl"
    draw = random.Random(0)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    kills = 0
    for _ in range(KILLS):
        before = recorded(log)
        if before == len(ITEMS):
            break
        child = subprocess.Popen([sys.executable, str(SCRIPT), str(killed), "0.02"], env=environment)
        wanted = before + draw.randint(0, 2)
        while child.poll() is None and recorded(log) < wanted:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.03)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        if draw.random() < 0.5 and log.exists():  # as a write that the power cut stopped half way
            with log.open("ab") as stream:
                stream.write('{"record": {"id": "q7", "text": "Rö'.encode()[: draw.randint(1, 36)])
    assert kills >= 3
    start(killed)
    ids = [line["record"]["id"] for line in lines(log)]
    assert sorted(ids) == sorted(item.id for item in ITEMS)
    assert (killed / "set.jsonl").read_bytes() == (tmp_path / "whole" / "set.jsonl").read_bytes()


def test_killed_between_the_last_record_and_the_end(tmp_path: Path) -> None:
    start(tmp_path)
    whole = (tmp_path / "set.jsonl").read_bytes()
    (tmp_path / "set.jsonl").unlink()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    result = manifest["files"]["set"].pop("result")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    assert run(job(tmp_path), [FILE], no_engine)["set"] == result
    assert (tmp_path / "set.jsonl").read_bytes() == whole
    (tmp_path / "set.log.jsonl").unlink()  # a log that somebody threw away costs the times only
    assert run(job(tmp_path), [FILE], no_engine)["set"]["items"] == len(ITEMS)


def test_failed_items_are_run_again_on_request(tmp_path: Path) -> None:
    start(tmp_path)
    asked: list[Generate] = []

    def mended(request: Generate) -> Reply:
        asked.append(request)
        return Reply((*b"", 0))

    results = run(job(tmp_path), [FILE], lambda: Slow(mended, 0.0))
    assert (results["set"]["failed"], asked) == (1, [])
    results = run(job(tmp_path, retry_failed=True), [FILE], lambda: Slow(mended, 0.0))
    assert (results["set"]["failed"], len(asked)) == (0, 1)
    assert [record["error"] for record in read_records(tmp_path / "set.jsonl")] == [None] * len(ITEMS)


def test_a_dying_engine_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    class Dying(Slow):
        def step(self) -> Any:
            if len(self.requests) - len(self._waiting) >= 9:
                raise EngineError("the server is gone")
            return super().step()

    with pytest.raises(EngineError, match="the server is gone"):
        run(job(tmp_path), [FILE], lambda: Dying(reply, 0.0))
    assert len(lines(tmp_path / "set.log.jsonl")) == 9
    assert not (tmp_path / "set.jsonl").exists()
    assert start(tmp_path)["set"]["items"] == len(ITEMS)


def test_another_run_in_the_folder_is_named(tmp_path: Path) -> None:
    start(tmp_path)
    first = job(tmp_path)
    for other, file, what in (
        (replace(first, system=FineTuned(PROMPTING, 1)), FILE, "system"),
        (replace(first, identity={"name": "finetuned", "model": {}}), FILE, "model"),
        (replace(first, settings={"limit": 5, "seed": 0}), FILE, "limit, seed"),
        (first, replace(FILE, sha256="1" * 64), "sha256"),
    ):
        with pytest.raises(UserError, match=f"holds a run with another {what}"):
            run(other, [file], no_engine)


def test_a_damaged_line_is_named_and_a_torn_one_is_cut(tmp_path: Path) -> None:
    records = RecordFile(tmp_path, "set")
    records.append({"id": "a", "scores": {}}, Spent(1.0))
    log = tmp_path / "set.log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"record": {"id"')
    assert RecordFile(tmp_path, "set").done == {"a"}
    assert log.read_bytes() == whole
    log.write_bytes(whole + b"{}\n" + whole)
    with pytest.raises(UserError, match=r"set.log.jsonl:2: damaged .*; delete this line"):
        RecordFile(tmp_path, "set")


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(SCRIPT.parent), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("one line: no space left")
    assert done.stderr.count("\n") == 1
    assert start(tmp_path)["set"]["items"] == len(ITEMS)
    assert [record["id"] for record in read_records(tmp_path / "set.jsonl")] == [item.id for item in ITEMS]


def test_the_record_of_an_answer_that_was_cut_off_says_so() -> None:
    tree = {"[No Retrieval]": "One.{retrieve 0 1 0}", "[No Retrieval]One.[No Retrieval]": Failed("no memory")}
    system = Reflective(PROMPTING, Decoding(mode="never"))
    long = replace(SHORT, segments=3)
    item = replace(ITEMS[0], instruction="Q")
    (finished,) = answer(Work(system, long, (item,)), scripted({"Q": tree}))
    assert finished.partial == "segment 2 could not be written: no memory"
    record = record_of(item, long, finished)
    assert (record["text"], record["partial"], record["error"]) == ("One.", finished.partial, None)
    assert "partial" not in record_of(item, long, replace(finished, partial=None))


def test_a_folder_that_is_being_written_is_refused(tmp_path: Path) -> None:
    with locked_directory(tmp_path / "r"), pytest.raises(UserError, match="another process is writing"):
        start(tmp_path / "r")
    assert start(tmp_path / "r")["set"]["items"] == len(ITEMS)


def test_records_stay_on_disk_with_whatever_others_wrote(tmp_path: Path) -> None:
    records = RecordFile(tmp_path, "set")
    for name in ("0", "1", "a\ud800"):
        fields = {"scores": {}, "error": None, "text": "x\udfff", "trace": "t" * 10_000}
        records.append({"id": name, **fields}, Spent(0.5, 2))
    assert all("t" * 100 not in repr(value) for value in vars(records).values())
    assert RecordFile(tmp_path, "set").done == {"0", "1", "a\ud800"}
    counts = {"items": 3, "failed": 0, "seconds": 1.5, "cached_tokens": 6}
    assert records.finish(["a\ud800", "0", "1"]) == counts
    found = read_records(tmp_path / "set.jsonl")
    assert [(one["id"], one["text"]) for one in found] == [(name, "x\udfff") for name in ("a\ud800", "0", "1")]
