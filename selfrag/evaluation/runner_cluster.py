"""A run's items answered on many machines through Ray: every actor has an engine of its own, in process or remote.

Records are scored and written where the run was started, so files, resumption and figures are those of a local run.
Each actor drives the questions of a piece together, through one `vllm serve` that all share or a model it loaded.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from selfrag.cluster import ERROR, Actors, on_actors, require_ray
from selfrag.decoding.sessions import Serving
from selfrag.errors import UserError
from selfrag.evaluation.runner_answers import MAX_LIVE, Execute, Finished, Work, answer

ROUNDS = 4
"""Pieces that each worker should get of a file, so that a slow one holds up little; none is above `MAX_LIVE` items."""


def answer_on_ray(open_engine: Callable[[], Serving], actors: Actors) -> Execute:
    """Answer in Ray actors, all works in one pool, so that each actor opens its engine once.

    Args:
        open_engine: called once in each actor; must be picklable.
        actors: how many, and on what.

    Raises:
        MissingExtraError: ray is not installed.
        UserError: while it runs: an engine could not be opened or died; what the other actors finished comes first.
    """
    require_ray()

    def execute(works: Sequence[Work]) -> Iterator[tuple[int, Finished]]:
        bare = [replace(work, items=()) for work in works]
        for row in on_actors(_pieces(works, actors.workers), _Worker, (open_engine, bare), actors):
            for finished in pickle.loads(row["finished"]):  # noqa: S301 - written by our own actors
                yield row["work"], finished

    return execute


def _pieces(works: Sequence[Work], workers: int) -> Iterator[dict[str, Any]]:
    for number, work in enumerate(works):
        size = min(MAX_LIVE, -(-len(work.items) // (workers * ROUNDS)))
        for start in range(0, len(work.items), max(1, size)):
            packed = pickle.dumps(work.items[start : start + size])
            yield {"work": number, "start": start, "items": packed}


class _Worker:
    """Lives in an actor. What it cannot open is reported with a piece, so that it reaches the user as a line."""

    def __init__(self, open_engine: Callable[[], Serving], works: Sequence[Work]) -> None:
        self._works, self._error = works, ""
        try:
            self._engine = open_engine()
        except UserError as error:
            self._error = str(error)

    def __call__(self, piece: dict[str, Any]) -> dict[str, Any]:
        """A piece to its answers; after the engine died to none."""
        done: list[Finished] = []
        if not self._error:
            work = replace(self._works[piece["work"]], items=pickle.loads(piece["items"]))  # noqa: S301 - ours
            try:
                for finished in answer(work, self._engine):
                    done.append(replace(finished, index=piece["start"] + finished.index))  # noqa: PERF401 - may raise
            except UserError as error:
                self._error = str(error)
        return {"work": piece["work"], "finished": pickle.dumps(done), ERROR: self._error}
