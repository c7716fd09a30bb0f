"""A run in a process of its own, to be killed: 60 items on the scripted engine, slowed down so that a kill hits it.

python scripted_run.py FOLDER SECONDS_PER_STEP; or FOLDER MODEL for two actors on a local Ray cluster
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "decoding"))

from written import EOS, FIRST_CHARACTER, LIMITS, PROMPTING

from selfrag.cluster import Actors, connect
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.evaluation.items import Item
from selfrag.evaluation.records import read_records
from selfrag.evaluation.runner import Cluster, Model, Run, Source, answer_on_ray, run, run_all, run_systems
from selfrag.evaluation.systems import FineTuned
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile

ITEMS = tuple(
    Item(f"q{i}", f"Question {i}", True, answers=("Paris",), references=("Paris",), task="short_qa") for i in range(60)
)
FILE = TaskFile("set", Path("set.jsonl"), "0" * 64, SHORT, ITEMS, len(ITEMS))
BROKEN = "Question 5"


class Slow(ScriptedEngine):
    """Serves three requests a step, the newest first, and takes its time."""

    def __init__(self, reply: Callable[[Generate], Reply | Failed], pause: float) -> None:
        super().__init__(reply, EOS, limits=LIMITS, batch=3)
        self.pause = pause

    def step(self) -> Sequence[tuple[int, Any]]:
        time.sleep(self.pause)
        self._waiting = dict(reversed(self._waiting.items()))
        return super().step()


def reply(request: Generate) -> Reply | Failed:
    """Paris for every third question; one question cannot be answered."""
    text = PROMPTING.codec.decode([i for i in request.prompt_ids if i >= FIRST_CHARACTER])
    number = int(text.split("Question ")[1].split()[0])
    if f"Question {number}" == BROKEN:
        return Failed("no memory\nleft")
    return Reply((*PROMPTING.codec.encode("Paris" if number % 3 == 0 else "Röm\u2028"), EOS))


def data_file(folder: Path, *rows: Mapping[str, Any], name: str = "set.jsonl") -> Path:
    """A file of rows."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def job(folder: Path, **options: Any) -> Run:
    """The run that all tests repeat."""
    return Run(FineTuned(PROMPTING, 0), {"name": "finetuned", "model": {"weights": "abc"}}, folder, **options)


def start(folder: Path, pause: float = 0.0, **options: Any) -> dict[str, dict[str, Any]]:
    """Run, or continue."""
    return run(job(folder, **options), [FILE], lambda: Slow(reply, pause))


def on_ray(folder: Path, model: str) -> None:
    """The same run by two actors of a cluster of two nodes, and a real model here and there."""
    import ray
    from ray.cluster_utils import Cluster as Nodes

    start(folder / "here")
    head = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=1, object_store_memory=10**8)
    with connect(nodes.address):
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        run_all([job(folder / "there")], [FILE], answer_on_ray(functools.partial(Slow, reply, 0.0), Actors(2)))
    assert (folder / "there" / "set.jsonl").read_bytes() == (folder / "here" / "set.jsonl").read_bytes()
    rows = [{"id": f"q{i}", "task": "short_qa", "instruction": f"Who {i}?", "answers": ["Ann"]} for i in range(12)]
    files = Source([data_file(folder, *rows, name="real.jsonl")]).load()
    for name, cluster in (("here", None), ("there", Cluster(nodes.address, Actors(2)))):
        run_systems({"base": "base"}, Model(model, "transformers"), files, folder / name, cluster=cluster)
    here, there = (read_records(folder / name / "base" / "real.jsonl") for name in ("here", "there"))
    assert [(one["id"], one["text"]) for one in here] == [(one["id"], one["text"]) for one in there]
    nodes.shutdown()


if __name__ == "__main__":
    if sys.argv[2][0].isdecimal():
        start(Path(sys.argv[1]), float(sys.argv[2]))
    else:
        on_ray(Path(sys.argv[1]), sys.argv[2])
