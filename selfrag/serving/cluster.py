"""The server as a Ray Serve deployment: replicas of the same application on the machines of a cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from retrieval.checks import whole
from selfrag.cluster import connect
from selfrag.errors import UserError, require
from selfrag.serving.app import create_app
from selfrag.serving.citations import CitationStyle
from selfrag.serving.service import Answering, AnswerStore, Capacity, Service


@dataclass(frozen=True, slots=True)
class Served:
    """What a server needs to start, here or in a replica; picklable."""

    load: Callable[[], Answering]  # loads the model
    name: str = "selfrag"  # of the model, as clients say it
    keep: Path | None = None  # SQLite file of kept answers; None keeps them in memory, each replica its own
    capacity: Capacity = field(default_factory=Capacity)  # how much a server takes on
    style: CitationStyle = "brackets"  # how text cites, unless a request says it
    events: bool = False  # whether sources are sent as Open WebUI's events, unless a request says it
    keys: Sequence[str] = field(default=(), repr=False)  # API keys

    def app(self) -> FastAPI:
        """The application with its model loaded.

        Raises:
            UserError: the model cannot be loaded, or answers cannot be kept in the file.
        """
        store = AnswerStore(self.keep)
        service = Service(self.load(), self.load, self.name, store, self.capacity, self.style, self.events)
        return create_app(service, self.keys)


@dataclass(frozen=True, slots=True)
class Replicas:
    """Where replicas run."""

    address: str  # of the cluster; `local` starts one on this machine, `auto` finds the one that it belongs to
    count: int = 1  # replicas
    num_cpus: float = 1  # CPUs of each
    num_gpus: float = 0  # GPUs of each

    def __post_init__(self) -> None:
        whole("replicas", self.count)


def run_on_ray(
    served: Served, replicas: Replicas, host: str, port: int, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve from replicas until a signal or an error ends it.

    Args:
        served: what each replica starts.
        replicas: how many, and on what.
        host: address that the cluster's proxies listen at.
        port: their port.
        ready: called when all replicas answer.

    Raises:
        MissingExtraError: Ray Serve is not installed.
        UserError: there is no cluster, or a replica does not start.
    """
    serve = require("ray.serve", extra="ray")
    ended = threading.Event()

    def build() -> FastAPI:  # Ray knows a builder by its being a plain function
        return served.app()

    with connect(replicas.address):
        serve.start(http_options={"host": host, "port": port})
        for number in (signal.SIGINT, signal.SIGTERM):  # Ray has put its own handlers there
            signal.signal(number, lambda *_: ended.set())
        replica: Any = serve.deployment(
            num_replicas=replicas.count,
            max_ongoing_requests=served.capacity.live + served.capacity.queue,
            ray_actor_options={"num_cpus": replicas.num_cpus, "num_gpus": replicas.num_gpus},
        )(serve.ingress(build)())
        try:
            serve.run(replica.bind(), name="selfrag")
            ready()
            ended.wait()
        except RuntimeError as error:
            raise UserError(f"the replicas did not start: {' '.join(str(error).split())[-400:]}") from error
        finally:
            serve.shutdown()
