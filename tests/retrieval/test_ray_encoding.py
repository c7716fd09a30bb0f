"""An index that Ray actors encode has the bytes of a local one, and a build that stopped goes on."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import retrieval.build
from retrieval import UserError, index_passages
from selfrag import cluster
from selfrag.cluster import Actors, RayEncoder
from selfrag.errors import MissingExtraError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def _actors_here(monkeypatch):
    """What Ray does: actors take turns, all crosses as bytes, rows come back in any order, an error at the end."""

    def on_actors(rows, worker, arguments, actors):
        workers = [worker(*arguments) for _ in range(actors.workers)]
        done = [workers[n % len(workers)](pickle.loads(pickle.dumps(row))) for n, row in enumerate(rows)]
        yield from reversed(done)
        if error := next((row["error"] for row in done if row["error"]), ""):
            raise UserError(error)

    monkeypatch.setattr(cluster, "on_actors", on_actors)
    monkeypatch.setattr(cluster, "require_ray", lambda: None)
    monkeypatch.setattr(retrieval.build, "BLOCK_ROWS", 2)


@pytest.mark.usefixtures("_actors_here")
@pytest.mark.parametrize("workers", [1, 4])
def test_actors_give_the_bytes_of_a_local_build(tmp_path, animals, make_encoder, workers):
    index_passages(animals, tmp_path / "local", encoder=make_encoder())
    index_passages(animals, tmp_path / "ray", encoder=RayEncoder(make_encoder(), make_encoder, Actors(workers)))
    assert (tmp_path / "ray/vectors.npy").read_bytes() == (tmp_path / "local/vectors.npy").read_bytes()


@pytest.mark.usefixtures("_actors_here")
def test_a_worker_with_another_encoder_is_refused(tmp_path, animals, make_encoder):
    other = RayEncoder(make_encoder(), lambda: make_encoder(fingerprint="words-2"), Actors(2))
    with pytest.raises(UserError, match="a worker has another encoder than 'words'"):
        index_passages(animals, tmp_path / "index", encoder=other)


def test_without_ray_the_extra_is_named(monkeypatch, make_encoder):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed; run: .*ray"):
        RayEncoder(make_encoder(), make_encoder, Actors(1))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's test cluster needs POSIX")
def test_one_and_four_workers_of_a_cluster_give_the_bytes_of_a_local_build(tiny_bert, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: on a busy machine the workers would not even start
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "ray_encoding.py"), str(tmp_path), str(tiny_bert)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["stopped: the worker is broken", "resumed: 5 texts"]
