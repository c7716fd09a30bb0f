"""The settings of a server. Importing them loads neither a model nor a web framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from selfrag.common.checks import check_float, check_int
from selfrag.common.errors import UserError

CitationStyle = Literal["brackets", "markdown", "none"]
MOST_BYTES = 256 << 20
"""Bytes of the answers that are kept, compressed."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a server takes on.

    Attributes:
        live: questions and searches that run at the same time.
        queue: questions and searches that wait beside them; more are refused.
        wait: seconds in which an answer, or the first segment of a stream, must come while others run; a question
            that takes longer is refused, and for a while each new one.
        body: most bytes of a request.
        kept_bytes: most bytes of the answers that are kept.
    """

    live: int = 256
    queue: int = 1_024
    wait: int = 100
    body: int = 4 << 20
    kept_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        check_int("live", self.live, 0)
        check_int("queue", self.queue, 0)
        check_int("wait", self.wait)
        if self.queue and not self.live:
            raise UserError("live=0: what waits would never run; give at least 1")


@dataclass(slots=True, kw_only=True)
class ServiceSettings:
    """How answers are served.

    Attributes:
        name: name of the model for clients; by default the last part of --model.
        capacity: how much is taken on.
        style: how text cites, unless a request says it: [1], a link in Markdown, or no marks.
        events: also send sources as Open WebUI reads them, unless a request says it.
        drop_old_turns: leave old turns out of a conversation that does not fit the model's context; without, refuse
            it.
    """

    name: str = "selfrag"
    capacity: Capacity = field(default_factory=Capacity)
    style: CitationStyle = "brackets"
    events: bool = False
    drop_old_turns: bool = False


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where a server listens, and who may ask it.

    Attributes:
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        api_key_file: file with the keys that clients may use, one a line.
        allow_host: name under which a server without keys answers, beside this machine's.
        connections: connections that one address may hold.
        drain: seconds that running questions get when the server ends.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: Path | None = None
    allow_host: tuple[str, ...] = ()
    connections: int = 512
    drain: int = 30

    def __post_init__(self) -> None:
        check_int("port", self.port, 0, 65_535)
        check_int("connections", self.connections)
        check_int("drain", self.drain, 0)


@dataclass(frozen=True, slots=True)
class Replicas:
    """Where replicas of a server run.

    Attributes:
        address: 'local', 'auto' or the address of a Ray cluster, for replicas.
        count: servers on the cluster.
        num_cpus: CPUs of each.
        num_gpus: GPUs per replica.
    """

    address: str
    count: int = 1
    num_cpus: float = 1
    num_gpus: float = 0

    def __post_init__(self) -> None:
        check_int("replicas", self.count)
        check_float("gpus", self.num_gpus)
