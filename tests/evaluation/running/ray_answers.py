"""Runs on a local Ray cluster of two nodes: `ray_answers.py FOLDER MODEL`. Not a test.

The scripted engine, whole and broken on the way, and a real model in each actor.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_run import FILE, Slow, job, reply, start

from selfrag.cluster import Actors, connect
from selfrag.errors import EngineError, UserError
from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import Cluster, Model, Source, answer_on_ray, run_all, run_systems


class Mortal(Slow):
    """Breaks in the middle of the work of another process."""

    def step(self) -> Any:
        if len(self.requests) - len(self._waiting) >= 12:
            raise EngineError(f"gone in process {os.getpid()}")
        return super().step()


def scripted(folder: Path, engine: type = Slow) -> None:
    """The run of `scripted_run`, by two actors."""
    run_all([job(folder)], [FILE], answer_on_ray(functools.partial(engine, reply, 0.0), Actors(2)))


def broken(folder: Path) -> None:
    """An engine dies in another process; what was answered is kept, and the run goes on."""
    with pytest.raises(UserError, match="gone in process") as caught:
        scripted(folder, Mortal)
    assert str(os.getpid()) not in str(caught.value)
    assert not (folder / "set.jsonl").exists()
    assert (folder / "set.log.jsonl").read_bytes().count(b"\n") >= 12
    scripted(folder)


def real(folder: Path, model: str, address: str) -> None:
    """A real model, here and in two actors."""
    row = {"task": "short_qa", "answers": ["Ann"], "passages": [{"id": "p", "title": "Book", "text": "Ann wrote it."}]}
    data = folder / "short.jsonl"
    data.write_text("".join(json.dumps(row | {"id": f"q{i}", "instruction": f"Who {i}?"}) + "\n" for i in range(12)))
    files, names = Source([data]).load(), {"selfrag-always": "selfrag-always", "rag-1": "rag-1"}
    for name, cluster in (("here", None), ("there", Cluster(address, Actors(2)))):
        run_systems(names, Model(model, "transformers"), files, folder / name, traces=True, cluster=cluster)
    for system in names:
        here, there = (read_records(folder / name / system / "short.jsonl") for name in ("here", "there"))
        assert [(one["id"], one["text"]) for one in here] == [(one["id"], one["text"]) for one in there]


def main() -> None:
    """Compare local runs with those on a cluster."""
    import ray
    from ray.cluster_utils import Cluster as Nodes

    folder, model = Path(sys.argv[1]), sys.argv[2]
    start(folder / "local")
    head = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    cluster = Nodes(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=10**8)
    try:
        with connect(cluster.address):
            assert len([node for node in ray.nodes() if node["Alive"]]) == 2
            scripted(folder / "scripted")
            broken(folder / "resumed")
        for name in ("scripted", "resumed"):
            assert (folder / name / "set.jsonl").read_bytes() == (folder / "local" / "set.jsonl").read_bytes()
        real(folder, model, cluster.address)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
