"""Ray Data: a worker makes of a shard what this process makes of it; and a real cluster of several processes."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import small_run

from critic.augment.critics import open_critic
from critic.augment.run import Shard, Worker, augment_shard, pack, sharded, unpack
from critic.pairs import Dropped, JsonlPairs, Pair
from retrieval.splitting import sentence_finder

ROOT = Path(__file__).parents[3]


def test_a_worker_makes_the_same_bytes_and_says_what_it_cannot_open(tmp_path: Path) -> None:
    opening = pickle.loads(pickle.dumps(functools.partial(open_critic, "lexical")))
    worker = Worker(opening, small_run.WordRetriever, pickle.loads(pickle.dumps(small_run.OPTIONS)))
    closed = Worker(functools.partial(open_critic, "nowhere"), small_run.WordRetriever, small_run.OPTIONS)
    find = sentence_finder()
    for shard in sharded(JsonlPairs(small_run.write_pairs(tmp_path / "pairs.jsonl")), small_run.SHARD):
        local = augment_shard(shard, opening(), small_run.WordRetriever(), small_run.OPTIONS, find)
        assert worker(pack(shard)) == {"shard": shard.number, "text": local, "error": ""}
        assert closed(pack(shard))["error"].startswith("no critic 'nowhere'")
    items = (Pair("a\u2028", "", "x \ud800", "y\x00 😀", "k"), Dropped("f:2", "bad row", "'output' is empty"))
    assert unpack(pack(Shard(7, items))) == Shard(7, items)


@pytest.mark.skipif(sys.platform == "win32", reason="Ray's test cluster needs POSIX")
def test_a_cluster_of_two_nodes_writes_the_bytes_of_a_local_run(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(here)]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: on a busy machine the workers would not even start
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(here / "ray_run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no critic for Seoul in process" in done.stdout
    assert "(not this one)" in done.stdout
    assert "2 nodes, 10 shards before it broke" in done.stdout  # all of the 14 that Seoul is not in
