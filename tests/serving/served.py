"""A real server on a loopback port, in a thread of the test process."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from random_model import random_model, random_search
from scripted import ScriptedEngine
from written import EOS, LIMITS, PROMPTING

from selfrag.api import SelfRAG
from selfrag.serving.app import create_app
from selfrag.serving.connections import ConnectionLimits, limited_connections
from selfrag.serving.guard import Access
from selfrag.serving.service import Service


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    url: str
    service: Service
    client: httpx.Client

    def chat(self, question="Q", **fields):
        """A chat completion."""
        body = {
            "model": self.service.name,
            "messages": [{"role": "user", "content": question}],
            **fields,
        }
        return self.client.post("/v1/chat/completions", json=body)


Serve = Callable[..., Running]


def refusal(reply):
    """Return the status and the code of an error."""
    return reply.status_code, reply.json()["error"]["code"]


def connect(running):
    """Return a connection to a server, to send what no client sends."""
    return socket.create_connection(("127.0.0.1", httpx.URL(running.url).port))


def events(reply):
    """Return what a stream sent."""
    lines = reply.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def random_rag(seed=0, engine=None, **options):
    """A scripted model that answers every question, always in the same way."""
    find = random_search(seed)
    engine = engine or ScriptedEngine(random_model(seed), EOS, limits=LIMITS)
    return SelfRAG(
        PROMPTING,
        engine,
        lambda queries, k: [find(query)[:k] for query in queries],
        **options,
    )


def soon(holds, seconds=30.0):
    """Seconds until something holds."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds, "it never held"
        time.sleep(0.005)
    return time.monotonic() - started


@contextmanager
def running(service, keys=(), limits=None, index=None):
    listener = socket.create_server(("127.0.0.1", 0))
    protocol = limited_connections(limits or ConnectionLimits())
    app = create_app(service, Access(keys), index=index)
    server = uvicorn.Server(
        uvicorn.Config(app, http=protocol, log_level="error", lifespan="on")
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    soon(lambda: server.started or not thread.is_alive(), 60)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with closing(listener), httpx.Client(base_url=url, timeout=60) as client:
        yield Running(url, service, client)
        client.close()
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def open_server():
    """A server without keys, for tests that leave it as it is."""
    with running(Service(random_rag())) as server:
        yield server


@pytest.fixture
def serve():
    """Starts a server for a `SelfRAG`; `keys`, `limits`, `index`, and fields of `Service`, by name."""
    with ExitStack() as stack:

        def start(rag=None, keys=(), limits=None, index=None, **options):
            service = Service(rag or random_rag(), **options)
            return stack.enter_context(running(service, keys, limits, index))

        yield start
