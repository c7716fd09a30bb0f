"""The small run on a local Ray cluster of two nodes, killed once on the way: `ray_run.py FOLDER`. Not a test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import small_run

from critic.augment.run import augment_on_ray, augment_pairs
from critic.pairs import JsonlPairs
from retrieval.errors import UserError
from selfrag.cluster import Actors, connect


class FailingCritic(small_run.LexicalCritic):
    """Breaks in the middle of the work of another process."""

    def judge(self, cases):
        if any("Seoul" in case.instruction for case in cases):
            raise UserError(f"no critic for Seoul in process {os.getpid()}")
        return super().judge(cases)


def on_ray(pairs: Path, out: Path, critic: type = small_run.LexicalCritic, wave: int = 100) -> dict:
    """The run of `small_run.run`, worked on by two actors."""
    execute = augment_on_ray(critic, small_run.WordRetriever, small_run.OPTIONS, Actors(2, wave=wave))
    return augment_pairs(JsonlPairs(pairs), out, execute, small_run.OPTIONS, shard=small_run.SHARD)


def main() -> None:
    """Compare a local run with one on a cluster, whole and resumed."""
    import ray
    from ray.cluster_utils import Cluster

    folder = Path(sys.argv[1])
    pairs = small_run.write_pairs(folder / "pairs.jsonl")
    small_run.run(pairs, folder / "local")
    whole = small_run.contents(folder / "local")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8})
    cluster.add_node(num_cpus=1, object_store_memory=10**8)
    try:
        with connect(cluster.address):
            nodes = len([node for node in ray.nodes() if node["Alive"]])
            on_ray(pairs, folder / "cluster", wave=8)
            assert small_run.contents(folder / "cluster") == whole
            try:
                on_ray(pairs, folder / "resumed", FailingCritic)
            except UserError as error:
                print(error, "" if f"process {os.getpid()}" in str(error) else "(not this one)")  # noqa: T201
            half = len(list((folder / "resumed" / "shards").glob("[0-9]*.jsonl")))
            on_ray(pairs, folder / "resumed")
            assert small_run.contents(folder / "resumed") == whole
            print(f"{nodes} nodes, {half} shards before it broke")  # noqa: T201
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
