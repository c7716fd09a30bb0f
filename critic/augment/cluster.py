"""A run on many machines through Ray Data: shards go out, their texts come back, and are written here.

A worker opens critic and index once and works on whole shards, so every byte of the output is that of a local run.
Critic and index must be found by the workers under the same names, on a shared disk or on each machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from critic.augment.algorithm import Dropped
from critic.augment.options import AugmentOptions
from critic.augment.run import Execute, Shard, augment_shard
from critic.cases import Critic
from critic.pairs import Pair, parse_pair
from retrieval.errors import UserError
from retrieval.passage import Retriever
from retrieval.splitting import sentence_finder
from selfrag.cluster import ERROR, WAVE, Actors, on_actors, require_ray


def augment_on_ray(
    open_critic: Callable[[], Critic],
    open_retriever: Callable[[], Retriever | None],
    options: AugmentOptions,
    *,
    workers: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    wave: int = WAVE,
) -> Execute:
    """Work on shards in Ray actors. Uses the cluster that `ray.init` connected to, or starts one here.

    Args:
        open_critic: called once in each worker; must be picklable.
        open_retriever: likewise.
        options: how pairs are augmented.
        workers: actors.
        num_cpus: of each actor.
        num_gpus: of each actor.
        wave: shards handed to Ray at once.

    Raises:
        MissingExtraError: ray is not installed.
        UserError: while it runs: whatever a worker raised as such.
    """
    require_ray()
    actors = Actors(workers, num_cpus, num_gpus, wave)

    def execute(shards: Iterator[Shard]) -> Iterator[tuple[Shard, str]]:
        sent: dict[int, Shard] = {}

        def packed() -> Iterator[dict[str, Any]]:
            for shard in shards:
                sent[shard.number] = shard
                yield pack(shard)

        for done in on_actors(packed(), Worker, (open_critic, open_retriever, options), actors):
            shard = sent.pop(done["shard"])
            if not done[ERROR]:
                yield shard, done["text"]

    return execute


class Worker:
    """Lives in an actor. What it cannot open is reported with a shard, so that it reaches the user as a line."""

    def __init__(
        self,
        open_critic: Callable[[], Critic],
        open_retriever: Callable[[], Retriever | None],
        options: AugmentOptions,
    ) -> None:
        self._options, self._error = options, ""
        try:
            self._critic, self._retriever = open_critic(), open_retriever()
            self._find = sentence_finder(options.sentences)
        except UserError as error:
            self._error = str(error)

    def __call__(self, packed: dict[str, Any]) -> dict[str, Any]:
        """A packed shard to its text, or to an error."""
        text, error = "", self._error
        try:
            if not error:
                text = augment_shard(unpack(packed), self._critic, self._retriever, self._options, self._find)
        except UserError as failure:
            error = str(failure)
        return {"shard": packed["shard"], "text": text, ERROR: error}


def pack(shard: Shard) -> dict[str, Any]:
    """A shard as plain text for the object store: the items in one JSON value, whatever characters they hold."""
    items = [
        {"pair": item.as_dict()} if isinstance(item, Pair) else {"dropped": [item.id, item.reason, item.detail]}
        for item in shard.items
    ]
    return {"shard": shard.number, "items": json.dumps(items)}


def unpack(packed: dict[str, Any]) -> Shard:
    """The shard that was packed."""
    items = json.loads(packed["items"])
    read = [parse_pair(item["pair"]) if "pair" in item else Dropped(*item["dropped"]) for item in items]
    return Shard(int(packed["shard"]), tuple(read))
