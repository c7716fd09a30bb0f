"""Work on many machines through Ray Data: tasks go out to actors as bytes, results come back as bytes.

What actors need must be found by them under the same names, on a shared disk or on each machine.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from selfrag.common.checks import check_float, check_int
from selfrag.common.errors import UserError, require

if TYPE_CHECKING:
    from retrieval.encoders import Encoder, EncoderCard
    from retrieval.vectors import Matrix

WAVE = 1024
"""Tasks that are handed to Ray at once, which bounds the memory of this process."""
ActorTask = TypeVar("ActorTask")
ActorResult = TypeVar("ActorResult")
Worker: TypeAlias = Callable[[ActorTask], Iterable[ActorResult]]
"""Works on one task, and gives its results."""


@dataclass(frozen=True, slots=True)
class Actors:
    """Ray actors that work in place of this process.

    Attributes:
        workers: number of Ray actors.
        num_cpus: CPUs per Ray actor.
        num_gpus: GPUs per Ray actor.
        wave: tasks handed to Ray at once.
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
    tasks: Iterable[ActorTask],
    open_worker: Callable[[], Worker[ActorTask, ActorResult]],
    actors: Actors,
) -> Iterator[ActorResult]:
    """Work on tasks in Ray actors. Uses the cluster that `ray.init` connected to, or starts one here.

    Args:
        tasks: picklable values, read a wave at a time.
        open_worker: called once in each actor; picklable.
        actors: how many, and on what.

    Yields:
        Results in the order in which their tasks are done, also those from before an error.

    Raises:
        MissingExtraError: ray is not installed.
        UserError: the first error of a wave, when all results of that wave are back.
    """
    require_ray()
    import ray.data

    # it tells of every pipeline it starts and ends
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = (
        False  # whoever calls has a bar of its own, with the ETA
    )
    remaining = iter(tasks)
    while sent := [{"task": pickle.dumps(t)} for t in islice(remaining, actors.wave)]:
        rows_done = ray.data.from_items(sent, override_num_blocks=len(sent)).map(
            Actor,
            fn_constructor_args=(open_worker,),
            compute=ray.data.ActorPoolStrategy(size=min(actors.workers, len(sent))),
            num_cpus=actors.num_cpus,
            num_gpus=actors.num_gpus,
        )
        error = ""
        for row in rows_done.iter_rows():
            # raised when what the others finished is safe
            error = error or row["error"]
            yield from pickle.loads(row["results"])  # noqa: S301 - from our own actors
        if error:
            raise UserError(error)


class Actor:
    """What Ray makes in each actor: a worker; an error of it is reported with each task from then on."""

    def __init__(self, open_worker: Callable[[], Worker[Any, Any]]) -> None:
        self._error = ""
        try:
            self._work = open_worker()
        except UserError as error:
            self._error = str(error)

    def __call__(self, row: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the results of a task, as far as there are some, and the error in one line or an empty text."""
        results: list[Any] = []
        if not self._error:
            task = pickle.loads(row["task"])  # noqa: S301 - from the process that asks
            try:
                for result in self._work(task):
                    results.append(result)  # noqa: PERF402 - may raise
            except UserError as error:
                self._error = str(error)
        return {"results": pickle.dumps(results), "error": self._error}


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
        numbered = ((number, list(texts)) for number, texts in enumerate(blocks))
        open_worker = partial(_encoding, self._open, self.card)
        finished: dict[int, Matrix] = {}
        following = 0
        for number, vectors in on_actors(numbered, open_worker, self._actors):
            finished[number] = vectors
            while following in finished:
                yield finished.pop(following)
                following += 1


def _encoding(
    open_encoder: Callable[[], Encoder], card: EncoderCard
) -> Worker[tuple[int, list[str]], tuple[int, Matrix]]:
    """Return what encodes numbered blocks in an actor."""
    from retrieval.encoders import checked_encode

    encoder = open_encoder()
    if encoder.card.identity() != card.identity():
        raise UserError(
            f"a worker has another encoder than {card.name!r}; give all of them the same"
        )

    def encode(block: tuple[int, list[str]]) -> Iterator[tuple[int, Matrix]]:
        number, texts = block
        yield number, checked_encode(encoder, texts)

    return encode


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
