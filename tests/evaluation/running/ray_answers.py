"""Runs on a local Ray cluster of two nodes: `ray_answers.py FOLDER MODEL`. Not a test.

The scripted engine, whole and broken on the way; a real model in each actor; and one endpoint that all actors share.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from answering_server import AnsweringServer
from scripted_run import FILE, Slow, job, reply, start

from selfrag.cluster import Actors, connect
from selfrag.engines.http import HTTPConfig, HTTPEngine
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


def broken(folder: Path) -> str:
    """What the error says of where an engine died."""
    try:
        scripted(folder, Mortal)
    except UserError as error:
        return "gone here" if str(os.getpid()) in str(error) else "gone in another process"
    return "not gone"


def over_http(folder: Path, url: str) -> None:
    """The same with one endpoint for both actors."""
    opening = functools.partial(HTTPEngine.load, HTTPConfig(url, vocab_size=2_000_000))
    run_all([job(folder)], [FILE], answer_on_ray(opening, Actors(2)))


def answers(file: Path) -> list[tuple[str, str | None]]:
    """What must not depend on where it was answered."""
    return [(record["id"], record.get("text")) for record in read_records(file)]


def real(folder: Path, model: str, address: str) -> None:
    """A real model, here and in two actors."""
    passage = {"id": "p", "title": "Book", "text": "Ann wrote it."}
    rows = [
        {"id": f"q{i}", "task": "short_qa", "instruction": f"Who {i}?", "answers": ["Ann"], "passages": [passage]}
        for i in range(12)
    ]
    data = folder / "short.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = Source([data]).load()
    for name, cluster in (("here", None), ("there", Cluster(address, Actors(2)))):
        names = {"selfrag-always": "selfrag-always", "rag-1": "rag-1"}
        run_systems(names, Model(model, "transformers"), files, folder / name, traces=True, cluster=cluster)
    for system in ("selfrag-always", "rag-1"):
        assert answers(folder / "here" / system / "short.jsonl") == answers(folder / "there" / system / "short.jsonl")


def main() -> None:
    """Compare local runs with those on a cluster."""
    import ray
    from ray.cluster_utils import Cluster as Nodes

    folder, model = Path(sys.argv[1]), sys.argv[2]
    start(folder / "local")
    whole = (folder / "local" / "set.jsonl").read_bytes()
    cluster = Nodes(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1, object_store_memory=10**8)
    server = AnsweringServer(most=1000)
    try:
        with connect(cluster.address):
            print(f"{len([node for node in ray.nodes() if node['Alive']])} nodes")  # noqa: T201
            scripted(folder / "scripted")
            assert (folder / "scripted" / "set.jsonl").read_bytes() == whole
            print(broken(folder / "resumed"))  # noqa: T201
            assert not (folder / "resumed" / "set.jsonl").exists()
            assert (folder / "resumed" / "set.log.jsonl").read_bytes().count(b"\n") >= 12
            scripted(folder / "resumed")
            assert (folder / "resumed" / "set.jsonl").read_bytes() == whole
            over_http(folder / "http", server.url)
            assert answers(folder / "http" / "set.jsonl") == answers(folder / "local" / "set.jsonl")
        real(folder, model, cluster.address)
    finally:
        server.stop()
        cluster.shutdown()
    print(  # noqa: T201
        "scripted: same bytes; resumed: same bytes; transformers: same answers; http: same answers"
    )


if __name__ == "__main__":
    main()
