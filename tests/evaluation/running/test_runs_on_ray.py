"""Runs on Ray: an actor answers as this process does, and a real cluster of several processes writes the same files."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripted_run import FILE, ITEMS, Slow, job, reply, start

from retrieval.errors import MissingExtraError, UserError
from selfrag.cluster import Actors
from selfrag.errors import EngineError
from selfrag.evaluation import runner as runner_cluster
from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import answer_on_ray, run_all

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


opened = partial(Slow, reply, 0.0)


class Mortal(Slow):
    """Dies after some answers."""

    def step(self) -> Any:
        if len(self.requests) - len(self._waiting) >= 9:
            raise EngineError("the server is gone")
        return super().step()


def in_this_process(
    rows: Iterator[Mapping[str, Any]], worker: type, arguments: tuple[Any, ...], actors: Actors
) -> Iterator[dict[str, Any]]:
    """What Ray does: two actors take turns, everything crosses as bytes, errors come at the end of the wave."""
    cloudpickle = pytest.importorskip("cloudpickle")  # Ray's is a copy of it
    workers = [worker(*cloudpickle.loads(cloudpickle.dumps(arguments))) for _ in range(actors.workers)]
    error = ""
    for number, row in enumerate(rows):
        done = workers[number % len(workers)](pickle.loads(pickle.dumps(dict(row))))
        error = error or done["error"]
        yield pickle.loads(pickle.dumps(done))
    if error:
        raise UserError(error)


@pytest.fixture
def _actors_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_cluster, "on_actors", in_this_process)
    monkeypatch.setattr(runner_cluster, "require_ray", lambda: None)


@pytest.mark.usefixtures("_actors_here")
def test_actors_write_the_bytes_of_a_local_run(tmp_path: Path) -> None:
    start(tmp_path / "here", traces=True)
    run_all([job(tmp_path / "there", traces=True)], [FILE], answer_on_ray(opened, Actors(2)))
    assert (tmp_path / "there" / "set.jsonl").read_bytes() == (tmp_path / "here" / "set.jsonl").read_bytes()


@pytest.mark.usefixtures("_actors_here")
def test_an_actor_whose_engine_dies_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the server is gone"):
        run_all([job(tmp_path)], [FILE], answer_on_ray(partial(Mortal, reply, 0.0), Actors(2)))
    assert (tmp_path / "set.log.jsonl").read_bytes().count(b"\n") == 22  # 11 of each actor
    assert start(tmp_path)["set"]["items"] == len(ITEMS)  # and this process continues where the cluster stopped
    assert [record["id"] for record in read_records(tmp_path / "set.jsonl")] == [item.id for item in ITEMS]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed; run: .*ray"):
        answer_on_ray(opened, Actors(1))
    with pytest.raises(UserError, match="workers=0"):
        Actors(0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's test cluster needs POSIX")
def test_a_cluster_of_two_nodes_writes_the_files_of_a_local_run(tiny_llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), str(HERE.parent), str(HERE.parents[1] / "decoding")]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: on a busy machine the workers would not even start
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "ray_answers.py"), str(tmp_path), str(tiny_llama)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
