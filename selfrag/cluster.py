"""Work on many machines through Ray Data: plain rows go out to actors, plain rows come back.

What actors need must be found by them under the same names, on a shared disk or on each machine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from selfrag.common.checks import check_float, check_int
from selfrag.common.errors import UserError, require

if TYPE_CHECKING:
    from retrieval.encoders import Encoder, EncoderCard
    from retrieval.vectors import Matrix

WAVE = 1024
"""Rows that are handed to Ray at once, which bounds the memory of this process."""
ERROR = "error"
"""Key of a row that comes back: what a worker could not do, in one line, or an empty text."""


@dataclass(frozen=True, slots=True)
class Actors:
    """Ray actors that work in place of this process.

    Attributes:
        workers: number of Ray actors.
        num_cpus: CPUs per Ray actor.
        num_gpus: GPUs per Ray actor.
        wave: rows handed to Ray at once.
        address: 'local', 'auto' or the address of a Ray cluster. None: the one that `ray.init` connected to.
    """

    workers: int = 1
    num_cpus: float = 1
    num_gpus: float = 0
    wave: int = WAVE
    address: str | None = None

    def __post_init__(self) -> None:
        check_int("workers", self.workers)
        check_float("gpus", self.num_gpus)


def require_ray() -> None:
    """Find out before a run begins whether Ray Data can work."""
    require("ray", extra="ray")
    require("pandas", extra="ray")


def on_actors(
    rows: Iterator[Mapping[str, Any]],
    worker: type,
    arguments: tuple[Any, ...],
    actors: Actors,
) -> Iterator[dict[str, Any]]:
    """Map rows in Ray actors. Uses the cluster that `ray.init` connected to, or starts one here.

    Args:
        rows: plain values, read a wave at a time.
        worker: class of callables from a row to a row with the key `error`; made once in each actor.
        arguments: of the class; picklable.
        actors: how many, and on what.

    Yields:
        Rows in the order in which they are done, also those with an error.

    Raises:
        MissingExtraError: ray is not installed.
        UserError: the first error that a row of a wave told of, when all rows of that wave are back.
    """
    require_ray()
    import ray.data

    # it tells of every pipeline it starts and ends
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = (
        False  # whoever calls has a bar of its own, with the ETA
    )
    while sent := [dict(row) for row in islice(rows, actors.wave)]:
        rows_done = ray.data.from_items(sent, override_num_blocks=len(sent)).map(
            worker,
            fn_constructor_args=arguments,
            compute=ray.data.ActorPoolStrategy(size=min(actors.workers, len(sent))),
            num_cpus=actors.num_cpus,
            num_gpus=actors.num_gpus,
        )
        error = ""
        for row in rows_done.iter_rows():
            error = error or row[ERROR]  # raised when what the others finished is safe
            yield row
        if error:
            raise UserError(error)


class RayEncoder:
    """An encoder whose blocks of passages are encoded by Ray actors, and single texts in this process.

    Args:
        local: the encoder in this process.
        open_encoder: called once in each actor; gives the same encoder, also on another device. Must be picklable.
        actors: how many, and on what.

    Raises:
        MissingExtraError: ray is not installed.
    """

    def __init__(
        self, local: Encoder, open_encoder: Callable[[], Encoder], actors: Actors
    ) -> None:
        require_ray()
        self._local, self._open, self._actors = local, open_encoder, actors

    @property
    def card(self) -> EncoderCard:
        """Return the card of the encoder in this process."""
        return self._local.card

    def encode(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors [n, d] of n texts, encoded in this process."""
        return self._local.encode(texts)

    def encode_blocks(self, blocks: Iterable[Sequence[str]]) -> Iterator[Matrix]:
        """Yield the vectors of each block of texts, in the order of the blocks, encoded by the actors.

        Raises:
            UserError: an actor could not open the encoder, or opened another one; what the others finished comes first.
        """
        import numpy as np

        rows = (
            {"number": number, "texts": json.dumps(list(texts))}
            for number, texts in enumerate(blocks)
        )
        finished: dict[int, Matrix] = {}
        following = 0
        for row in on_actors(
            rows, _EncodingWorker, (self._open, self.card), self._actors
        ):
            if not row[ERROR]:
                finished[row["number"]] = np.frombuffer(
                    row["vectors"], np.float32
                ).reshape(-1, self.card.dim)
            while following in finished:
                yield finished.pop(following)
                following += 1


class _EncodingWorker:
    """Lives in an actor."""

    def __init__(self, open_encoder: Callable[[], Encoder], card: EncoderCard) -> None:
        self._open, self._card = open_encoder, card
        self._encoder: Encoder | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row with its vectors, or with the error."""
        from retrieval.encoders import checked_encode

        result = {"number": row["number"], "vectors": b"", ERROR: ""}
        try:
            if self._encoder is None:
                self._encoder = self._open()
                if self._encoder.card.identity() != self._card.identity():
                    raise UserError(
                        f"a worker has another encoder than {self._card.name!r}; give all of them the same"
                    )
            vectors = checked_encode(self._encoder, json.loads(row["texts"]))
        except UserError as error:
            return result | {ERROR: str(error)}
        return result | {"vectors": vectors.tobytes()}


@contextmanager
def connect(address: str | None) -> Iterator[None]:
    """Connect to a cluster until the block ends: `local` starts one here, `auto` finds that of this machine."""
    ray = require("ray", extra="ray")
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="WARNING",
            ignore_reinit_error=True,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
