"""The small run on a local Ray cluster of two nodes, broken off once on the way: `ray_run.py FOLDER`. Not a test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray
import small_run
from ray.cluster_utils import Cluster

from critic.augment.run import augment_on_ray, augment_pairs
from critic.pairs import open_source
from retrieval.errors import UserError
from selfrag.cluster import Actors, connect


class FailingCritic(small_run.LexicalCritic):
    """Breaks in the middle of the work of another process."""

    def judge(self, cases):
        if any("Seoul" in case.instruction for case in cases):
            raise UserError(f"no critic for Seoul in process {os.getpid()}")
        return super().judge(cases)


def on_ray(pairs: Path, out: Path, critic: type) -> None:
    """The run of `small_run.run`, worked on by two actors."""
    execute = augment_on_ray(critic, small_run.WordRetriever, small_run.OPTIONS, Actors(2, wave=100))
    augment_pairs(open_source(str(pairs)), out, execute, small_run.OPTIONS, shard=small_run.SHARD)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pairs, out = small_run.write_pairs(folder / "pairs.jsonl"), folder / "cluster"
    small_run.run(pairs, folder / "local")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8})
    cluster.add_node(num_cpus=1, object_store_memory=10**8)
    try:
        with connect(cluster.address):
            nodes = len([node for node in ray.nodes() if node["Alive"]])
            try:
                on_ray(pairs, out, FailingCritic)
            except UserError as error:
                print(error, "" if f"process {os.getpid()}" in str(error) else "(not this one)")  # noqa: T201
            half = len(list((out / "shards").glob("[0-9]*.jsonl")))
            on_ray(pairs, out, small_run.LexicalCritic)
            assert small_run.contents(out) == small_run.contents(folder / "local")
            print(f"{nodes} nodes, {half} shards before it broke")  # noqa: T201
    finally:
        cluster.shutdown()
