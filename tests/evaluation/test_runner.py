"""The runner: every item once, whatever happens, here and on Ray. Kills are real: a process, SIGKILL, again."""

import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from full_disk import LIMITED
from json_files import read_json, write_json, write_lines
from refusals import refused
from scripted import ScriptedReply
from scripted_run import FILE, ITEMS, Slow, finetuned, job, reply, start
from written import PROMPTING, scripted

from scripts.reproduction.standins import FILES
from scripts.reproduction.table2 import ROWS
from selfrag.cluster import Actor, Actors
from selfrag.common import plugins
from selfrag.common.atomic import locked_directory
from selfrag.common.errors import EngineError, MissingExtraError, UserError
from selfrag.decoding.policy import Decoding
from selfrag.evaluation import runner
from selfrag.evaluation.presets import PRESETS
from selfrag.evaluation.records import RecordFile, Spent, failures, read_records
from selfrag.evaluation.runner import (
    Source,
    Work,
    answer,
    answer_on_ray,
    record_of,
    run,
    run_all,
)
from selfrag.evaluation.systems import SYSTEMS, Reflective
from selfrag.evaluation.task import SHORT
from selfrag.reflection.requests import Failed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "scripted_run.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
KILLS = 6
FULL = f"""
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from selfrag.common.errors import UserError
from scripted_run import start
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{LIMITED.format(size=4000)}
try:
    start(Path(sys.argv[2]))
except UserError as error:
    sys.exit(f"one line: {{error}}")
"""


class Mortal(Slow):
    """Dies after nine answers."""

    def step(self):
        if len(self.requests) - len(self._waiting) >= 9:
            raise EngineError("the server is gone")
        return super().step()


def recorded(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


def complete(folder):
    """Whether the run of a folder has every item, in order."""
    return [record["id"] for record in read_records(folder / "set.jsonl")] == [
        item.id for item in ITEMS
    ]


def no_engine():
    raise AssertionError("nothing is left to run")


def test_a_run_records_every_item_in_order_and_counts_what_failed(tmp_path):
    results = start(tmp_path)
    records = read_records(tmp_path / "set.jsonl")
    assert complete(tmp_path)
    assert "no memory" in records[5]["error"]
    assert records[5]["scores"]["contains"] == [0.0, 1.0]
    assert records[5]["scores"]["prompt_tokens"] is None
    assert [records[at]["scores"]["contains"] for at in (3, 4)] == [
        [1.0, 1.0],
        [0.0, 1.0],
    ]
    assert {"items": len(ITEMS), "failed": 1}.items() <= results["set"].items()
    (failed,) = failures(tmp_path, results)
    assert failed.of == "set"
    assert failed.items == len(ITEMS)
    assert failed.failed == 1
    assert "no memory" in str(failed)
    manifest = read_json(tmp_path / "manifest.json")
    assert manifest["files"]["set"]["result"] == results["set"]
    assert manifest["files"]["set"]["settings"]["task"]["new_tokens"] == 50
    assert manifest["identity"]["system"]["kind"] == "finetuned"
    assert {"commit", "time", "versions"} <= set(manifest["about"])


def test_killed_at_random_points_the_file_is_the_same(tmp_path):
    start(tmp_path / "whole")
    killed = tmp_path / "killed"
    log = killed / "set.log.jsonl"
    draw = random.Random(0)
    kills = 0
    for _ in range(KILLS):
        before = recorded(log)
        if before == len(ITEMS):
            break
        child = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(killed), "0.02"], env=ENVIRONMENT
        )
        wanted = before + draw.randint(0, 2)
        while child.poll() is None and recorded(log) < wanted:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.03)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        # as a write that the power cut stopped half way
        if draw.random() < 0.5 and log.exists():
            with log.open("ab") as stream:
                stream.write(
                    '{"record": {"id": "q7", "text": "Rö'.encode()[
                        : draw.randint(1, 36)
                    ]
                )
    assert kills >= 3
    start(killed)
    ids = [json.loads(line)["record"]["id"] for line in log.read_bytes().splitlines()]
    assert sorted(ids) == sorted(item.id for item in ITEMS)
    assert (killed / "set.jsonl").read_bytes() == (
        tmp_path / "whole/set.jsonl"
    ).read_bytes()


def test_killed_between_the_last_record_and_the_end(tmp_path):
    start(tmp_path)
    whole = (tmp_path / "set.jsonl").read_bytes()
    (tmp_path / "set.jsonl").unlink()
    manifest = read_json(tmp_path / "manifest.json")
    result = manifest["files"]["set"].pop("result")
    write_json(tmp_path / "manifest.json", manifest)

    assert run(job(tmp_path), [FILE], no_engine)["set"] == result
    assert (tmp_path / "set.jsonl").read_bytes() == whole
    (
        tmp_path / "set.log.jsonl"
    ).unlink()  # a log that somebody threw away costs the times only
    assert run(job(tmp_path), [FILE], no_engine)["set"]["items"] == len(ITEMS)


def test_failed_items_are_run_again_on_request(tmp_path):
    start(tmp_path)
    asked = []

    def mended(request):
        asked.append(request)
        return ScriptedReply((*b"", 0))

    for again, failed, count in ((False, 1, 0), (True, 0, 1)):
        results = run(
            job(tmp_path, retry_failed=again), [FILE], lambda: Slow(mended, 0.0)
        )
        assert results["set"]["failed"] == failed
        assert len(asked) == count
    assert [record["error"] for record in read_records(tmp_path / "set.jsonl")] == [
        None
    ] * len(ITEMS)


def test_a_dying_engine_stops_the_run_and_loses_nothing(tmp_path):
    with pytest.raises(EngineError, match="the server is gone"):
        run(job(tmp_path), [FILE], lambda: Mortal(reply, 0.0))
    assert recorded(tmp_path / "set.log.jsonl") == 9
    assert not (tmp_path / "set.jsonl").exists()
    assert start(tmp_path)["set"]["items"] == len(ITEMS)


def test_another_run_in_the_folder_or_another_process_is_named(tmp_path):
    with locked_directory(tmp_path), refused("another process is writing"):
        start(tmp_path)
    start(tmp_path)
    first = job(tmp_path)
    for other, file, what in (
        (replace(first, system=finetuned(1)), FILE, "system"),
        (replace(first, identity={"name": "finetuned", "model": {}}), FILE, "model"),
        (replace(first, settings={"limit": 5, "seed": 0}), FILE, "limit, seed"),
        (first, replace(FILE, sha256="1" * 64), "sha256"),
    ):
        with refused(f"other {what}"):
            run(other, [file], no_engine)


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path):
    command = [sys.executable, "-c", FULL, str(HERE), str(tmp_path)]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("one line: no space left")
    assert done.stderr.count("\n") == 1
    start(tmp_path)
    assert complete(tmp_path)


def test_the_record_of_an_answer_that_was_cut_off_says_so():
    tree = {
        "[No Retrieval]": "One.{retrieve 0 1 0}",
        "[No Retrieval]One.[No Retrieval]": Failed("no memory"),
    }
    system = Reflective(PROMPTING, Decoding(mode="never"))
    long = replace(SHORT, segments=3)
    item = replace(ITEMS[0], instruction="Q")
    (finished,) = answer(Work(system, long, (item,)), scripted({"Q": tree}))
    record = record_of(item, long, finished)
    assert (
        record["partial"]
        == finished.partial
        == "segment 2 could not be written: no memory"
    )
    assert record["text"] == "One."
    assert record["error"] is None
    assert "partial" not in record_of(item, long, replace(finished, partial=None))


def test_records_stay_on_disk_with_whatever_others_wrote(tmp_path):
    records = RecordFile(tmp_path, "set")
    for name in ("0", "1", "a\ud800"):
        fields = {"scores": {}, "error": None, "text": "x\udfff", "trace": "t" * 10_000}
        records.append({"id": name, **fields}, Spent(0.5, 2))
    assert all("t" * 100 not in repr(value) for value in vars(records).values())
    log = tmp_path / "set.log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"record": {"id"')  # a torn line is cut
    records.close()
    reader = RecordFile(tmp_path, "set")
    assert reader.done == {"0", "1", "a\ud800"}
    reader.close()
    assert log.read_bytes() == whole
    counts = {
        "items": 3,
        "failed": 0,
        "seconds": 1.5,
        "cached_tokens": 6,
        "processor_seconds": 0.0,
    }
    assert records.finish(["a\ud800", "0", "1"]) == counts
    found = read_records(tmp_path / "set.jsonl")
    assert [(one["id"], one["text"]) for one in found] == [
        (name, "x\udfff") for name in ("a\ud800", "0", "1")
    ]
    (tmp_path / "set.jsonl").unlink()
    log.write_bytes(whole + b"{}\n" + whole)
    with refused(r"set.log.jsonl:4: damaged"):
        RecordFile(tmp_path, "set")


# On Ray


def in_this_process(tasks, open_worker, actors):
    """What Ray does: two actors take turns, everything crosses as bytes, errors come at the end of the wave."""
    cloudpickle = pytest.importorskip("cloudpickle")  # Ray's is a copy of it
    opened = [
        Actor(cloudpickle.loads(cloudpickle.dumps(open_worker)))
        for _ in range(actors.workers)
    ]
    error = ""
    for number, task in enumerate(tasks):
        done = opened[number % len(opened)]({"task": pickle.dumps(task)})
        error = error or done["error"]
        yield from pickle.loads(done["results"])
    if error:
        raise UserError(error)


def test_actors_write_the_bytes_of_a_local_run_and_one_whose_engine_dies_loses_nothing(
    tmp_path, monkeypatch
):
    here, there = tmp_path / "here", tmp_path / "there"
    start(here, traces=True)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed; run: .*ray"):
        answer_on_ray(partial(Slow, reply, 0.0), Actors(1))
    monkeypatch.setattr(runner, "on_actors", in_this_process)
    monkeypatch.setattr(runner, "require_ray", lambda: None)
    with refused("the server is gone"):
        run_all(
            [job(there, traces=True)],
            [FILE],
            answer_on_ray(partial(Mortal, reply, 0.0), Actors(2)),
        )
    assert recorded(there / "set.log.jsonl") == 22  # 11 of each actor
    run_all(
        [job(there, traces=True)],
        [FILE],
        answer_on_ray(partial(Slow, reply, 0.0), Actors(2)),
    )
    assert (there / "set.jsonl").read_bytes() == (here / "set.jsonl").read_bytes()
    with refused("workers=0"):
        Actors(0)


# docs/guides/running.md

PAGE = (ROOT / "docs/guides/running.md").read_text()


def test_every_name_is_on_the_page():
    protocols = {name for one in PRESETS.values() for name in one.protocols}
    assert [
        name for name in (*PRESETS, *SYSTEMS, *protocols) if f"`{name}`" not in PAGE
    ] == []
    assert f"the {len(ROWS)} rows of the paper's main table" in PAGE


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A data file without passages beside the page's module of one's own, in the working directory."""
    row = {"id": "1", "task": "short_qa", "instruction": "Who?", "answers": ["Ann"]}
    write_lines(tmp_path / "own.jsonl", [row])
    (module,) = re.findall(
        r"^```py\n(# mysearch\.py\n.*?)^```", PAGE, flags=re.M | re.S
    )
    (tmp_path / "mysearch.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "own.jsonl"
    sys.modules.pop("mysearch", None)


@pytest.mark.engine
def test_its_example_runs(own, tiny_llama, tmp_path, capsys):
    pytest.importorskip("rouge_score")
    (tmp_path / "asqa.json").symlink_to(FILES / "asqa_eval_gtr_top100.json")
    (python,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    # the one thing that is not as on the page: a model of this machine
    assert python.count('Model("demo")') == 1
    code = python.replace(
        'Model("demo")', f'Model({str(tiny_llama)!r}, "transformers")'
    )
    # the point of this test
    exec(
        compile(code, "running.md", "exec", dont_inherit=True), {"__name__": "__docs__"}
    )
    assert capsys.readouterr().out == "1\n"
    left = {
        "manifest.json",
        *(
            f"{name}{end}"
            for name in ("own", "asqa")
            for end in (".jsonl", ".log.jsonl")
        ),
    }
    for name in ("adaptive", "top-1"):
        assert {path.name for path in (tmp_path / "runs" / name).iterdir()} == left


def test_items_without_passages_get_those_of_the_retriever(own, monkeypatch):
    source = Source([own], found=3, index="mysearch:search")
    (file,) = source.load()
    assert [passage.text for passage in file.items[0].passages] == ["Ann was first."]
    assert source.settings() == {"retriever": "mysearch:search", "found": 3}
    point = metadata.EntryPoint("wiki", "mysearch:search", "selfrag.retrievers")
    monkeypatch.setattr(
        plugins,
        "entry_points",
        lambda group, name=None: [point] if group == point.group else [],
    )
    assert Source([own], index="wiki").load()[0].items == file.items


@pytest.mark.usefixtures("own")
def test_an_unknown_one_is_one_line(refusal):
    for name, said in (
        ("wiki", "no index at wiki, and no retriever of that name"),
        ("nowhere_at_all:search", "the module cannot be imported"),
        ("mysearch:absent", "mysearch has no 'absent'"),
    ):
        command = f"selfrag eval run own.jsonl --retriever {name} --out runs"
        assert said in refusal(command)
