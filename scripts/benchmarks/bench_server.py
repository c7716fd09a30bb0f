"""Load a server with many streaming clients: `bench_server.py [--clients 200] [--seconds 180] [--out REPORT.json]`.

The same process answers the questions one by one, then in one `generate()` call, then as a server of clients that
stream, each of which asks the next question as soon as it has an answer. Every answer must be that of the single run.
With `--hostile N` so many hostile clients try to harm the server meanwhile. A process of its own measures `/health`, so
that its times are the server's and not those of 250 clients in one process.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import httpx

from scripts.benchmarks.hostile_clients import attack, watch_health
from scripts.benchmarks.report import results_table
from scripts.benchmarks.speed.workload import demo_items
from scripts.command import command, progress
from selfrag.common.atomic import write_json

MIB = 1 << 20


def serve(
    pipe: Connection, model: str, engine: str, questions: Sequence[str], segments: int
) -> None:
    """Measure `generate()` in the process of the server, then serve until it is ended."""
    import uvicorn

    from selfrag.api import SelfRAG
    from selfrag.decoding.answer import Answer
    from selfrag.decoding.policy import Decoding
    from selfrag.serving.app import create_app
    from selfrag.serving.connections import (
        KEEP_ALIVE,
        ConnectionLimits,
        limited_connections,
    )
    from selfrag.serving.service import Service

    rag = SelfRAG.from_pretrained(model, engine=engine, dtype="float32")
    rag.defaults = Decoding(max_segments=segments)
    rag.generate(questions[:2])
    alone, first = [], []
    for question in questions:
        started = time.perf_counter()
        pieces = rag.stream(question)
        segment = next(pieces)
        first.append(time.perf_counter() - started)
        answer = cast(Answer, [segment, *pieces][-1])
        alone.append(answer.cited_text())
    started = time.perf_counter()
    together = rag.generate(list(questions))
    seconds = time.perf_counter() - started
    same = sum(
        answer.cited_text() == text
        for answer, text in zip(together, alone, strict=True)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send((listener.getsockname()[1], alone, first, seconds, same))
    protocol = limited_connections(ConnectionLimits())
    config = uvicorn.Config(
        create_app(Service(rag)),
        http=protocol,
        log_level="critical",
        timeout_keep_alive=KEEP_ALIVE,
    )
    uvicorn.Server(config).run(sockets=[listener])


def resident(process: int) -> float:
    """Return MiB of a process in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / MIB


async def ask(client: httpx.AsyncClient, question: str) -> tuple[str, float]:
    """Return the streamed answer, and the seconds to its first segment."""
    started, first, text = time.perf_counter(), None, ""
    body = {
        "model": "selfrag",
        "stream": True,
        "messages": [{"role": "user", "content": question}],
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                piece = chunk["choices"][0]["delta"].get("content", "")
                if piece and first is None:
                    first = time.perf_counter() - started
                text += piece
    return text, time.perf_counter() - started if first is None else first


def measure_health(pipe: Connection, url: str, seconds: float) -> None:
    """Ask for `/health` in a process of its own, and send the seconds of each reply when its time is over."""
    pipe.send(asyncio.run(watch_health(url, time.perf_counter() + seconds)))


async def load(
    url: str,
    questions: Sequence[str],
    expected: Sequence[str],
    clients: int,
    seconds: float,
    hostile: int = 0,
) -> Any:
    """Ask from many clients for a while, beside hostile ones; return what was measured."""
    measured: dict[str, Any] = {"answers": 0, "wrong": 0, "failed": [], "first": []}
    until, numbers = time.perf_counter() + seconds, iter(range(1 << 60))

    async def ask_on(client: httpx.AsyncClient) -> None:
        while time.perf_counter() < until:
            number = next(numbers) % len(questions)
            try:
                text, first = await ask(client, questions[number])
            except httpx.HTTPError as error:
                measured["failed"].append(repr(error))
                continue
            measured["answers"] += 1
            measured["wrong"] += text != expected[number]
            measured["first"].append(first)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        measured["hostile"], *_ = await asyncio.gather(
            attack(url, hostile, until), *(ask_on(client) for _ in range(clients))
        )
    return measured


@command
def main(
    *,
    model: str = "demo",
    engine: str = "vllm",
    clients: int = 200,
    hostile: int = 0,
    seconds: float = 180,
    questions: int = 200,
    segments: int = 3,
    out: Path | None = None,
) -> None:
    """Load a server and print what was measured.

    Args:
        model: checkpoint directory, hub name or `demo`.
        engine: of the server.
        clients: that stream answers.
        hostile: clients that try to harm the server.
        seconds: how long they ask.
        questions: different ones.
        segments: most of an answer.
        out: JSON file with everything measured.
    """
    say = progress()
    texts = [item.question for item in demo_items(questions, 1)]
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    words = (theirs, model, engine, texts, segments)
    server = spawning.Process(target=serve, args=words, daemon=True)
    server.start()
    theirs.close()  # so that a server that ends early ends the waiting
    port, alone, alone_first, batch_seconds, same = ours.recv()
    say(f"one by one and in one call: done, {same} of {len(texts)} answers equal")
    url = f"http://127.0.0.1:{port}"
    asyncio.run(load(url, texts, alone, clients, min(20, seconds)))
    health, sends_health = spawning.Pipe()
    watched = (sends_health, url, seconds)
    spawning.Process(target=measure_health, args=watched, daemon=True).start()
    before, started = resident(server.pid or 0), time.perf_counter()
    measured = asyncio.run(load(url, texts, alone, clients, seconds, hostile))
    lasted, after = time.perf_counter() - started, resident(server.pid or 0)
    health_seconds = health.recv()
    server.terminate()
    in_batch, served = len(texts) / batch_seconds, measured["answers"] / lasted
    report = {
        "batch_questions_per_second": in_batch,
        "batch_equal_to_single": same,
        "served_questions_per_second": served,
        "served / batch": served / in_batch,
        "answers": measured["answers"],
        "different_from_single": measured["wrong"],
        "failed": measured["failed"],
        "first_segment_alone_p50": statistics.median(alone_first),
        "first_segment_loaded_p50": statistics.median(measured["first"]),
        "health_p99": statistics.quantiles(health_seconds, n=100)[98],
        "health_max": max(health_seconds),
        "hostile": measured["hostile"],
        "resident_mib_before": before,
        "resident_mib_after": after,
    }
    print(results_table([{"what": name, "value": report[name]} for name in report]))
    if out:
        write_json(out, report)


if __name__ == "__main__":
    main()
