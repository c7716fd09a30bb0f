"""Load a server with many streaming clients: `bench_server.py [--clients 200] [--seconds 180] [--out REPORT.json]`.

The same process answers the questions one by one, then in one `generate()` call, then as a server of clients that
stream, each of which asks the next question as soon as it has an answer, or after the pause that a refusal asks for.
Every answer must be that of the single run. With `--hostile N` so many hostile clients try to harm the server
meanwhile. A process of its own measures `/health`, so that its times are the server's and not those of 250 clients.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import re
import socket
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import httpx

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import demo_items
from scripts.command import command

CHAT = "/v1/chat/completions"


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
    pairs = zip(together, alone, strict=True)
    same = sum(answer.cited_text() == text for answer, text in pairs)
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send((listener.getsockname()[1], alone, first, seconds, same))
    config = uvicorn.Config(
        create_app(Service(rag)),
        http=limited_connections(ConnectionLimits()),
        log_level="critical",
        timeout_keep_alive=KEEP_ALIVE,
    )
    uvicorn.Server(config).run(sockets=[listener])


async def ask(client: httpx.AsyncClient, question: str) -> tuple[str, float]:
    """Return the streamed answer, and the seconds to its first segment."""
    started, first, text = time.perf_counter(), None, ""
    turns = [{"role": "user", "content": question}]
    body = {"model": "selfrag", "stream": True, "messages": turns}
    async with client.stream("POST", CHAT, json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise httpx.RemoteProtocolError(chunk["error"]["message"])
                piece = chunk["choices"][0]["delta"].get("content", "")
                if piece and first is None:
                    first = time.perf_counter() - started
                text += piece
    return text, time.perf_counter() - started if first is None else first


def measure_health(pipe: Connection, url: str, seconds: float) -> None:
    """Ask for `/health` four times a second, and send the seconds of each reply when the time is over."""
    until, replies = time.perf_counter() + seconds, []
    with httpx.Client(base_url=url, timeout=60) as client:
        while time.perf_counter() < until:
            started = time.perf_counter()
            client.get("/health").raise_for_status()
            replies.append(time.perf_counter() - started)
            time.sleep(0.25)
    pipe.send(replies)


def hostile_request(kind: int, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a request that tries to harm the server."""
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Who are you?"},
    ]
    chat: dict[str, Any] = {"model": "selfrag", "messages": turns}
    post = {"method": "POST", "url": CHAT}
    if kind == 0:
        turns[0]["content"] = "word " * rng.choice([100_000, 190_000, 800_000])
        return "long conversation", {**post, "json": chat}
    if (
        kind == 1
    ):  # the server would keep an answer with 1.5 MB that cannot be compressed
        evidence = [
            {"id": str(n), "text": rng.randbytes(7_500).hex()} for n in range(100)
        ]
        chat["selfrag"] = {
            "evidence": evidence,
            "mode": "always",
            "passages": 5,
            "max_segments": 1,
            "segment_tokens": 5,
        }
        return "much evidence", {**post, "json": chat}
    if kind == 2:
        bodies = '{"model": NaN}', "[" * 100_000, '{"model": "selfrag"', '{"a": 1e400}'
        headers = {"Content-Type": "application/json"}
        content = rng.choice(bodies)
        return "broken JSON", {**post, "content": content, "headers": headers}
    if kind == 3:
        trace: dict[str, Any] = {"question": "Q", "decoding": {}, "best": 0}
        trace |= {"options": [], "decisions": [], "nodes": [{"id": 0, "parent": 0}]}
        body = {"trace": trace}
        return "endless trace", {"method": "POST", "url": "/v1/rescore", "json": body}
    headers = {"Host": "evil.example"}
    return "foreign host", {"method": "GET", "url": "/v1/models", "headers": headers}


async def hold_a_connection(url: httpx.URL, rng: random.Random) -> str:
    """Send nothing, or a byte a second, until the server ends the connection."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    started = time.monotonic()
    with suppress(ConnectionError):
        slow = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
        writer.write(rng.choice([b"", slow]))
        while not reader.at_eof() and time.monotonic() - started < 60:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(100), 1.0)
            writer.write(b"x")
    writer.close()
    return "held" if time.monotonic() - started >= 60 else "closed by the server"


@dataclass(slots=True)
class ServerLoad:
    """What clients ask of a server until a time is over, and what came of it."""

    questions: Sequence[str]
    expected: Sequence[str]  # the answers of the single run
    until: float  # time of `time.perf_counter`
    answers: int = 0
    wrong: int = 0  # answers that are not the expected ones
    refused: Counter[str] = field(default_factory=Counter)  # the status, or the error
    longest: float = 0.0  # seconds until an answer or a refusal was whole
    first: list[float] = field(default_factory=list)  # seconds to the first segment
    hostile: Counter[str] = field(default_factory=Counter)  # outcomes of attempts
    _numbers: Any = field(default_factory=count)

    async def ask_on(self, client: httpx.AsyncClient) -> None:
        """Ask one question after the other."""
        while time.perf_counter() < self.until:
            number = next(self._numbers) % len(self.questions)
            started, pause = time.perf_counter(), 0.0
            try:
                text, first = await ask(client, self.questions[number])
            except httpx.HTTPStatusError as error:
                self.refused[str(error.response.status_code)] += 1
                pause = float(error.response.headers.get("Retry-After", 1))
            except httpx.HTTPError as error:
                self.refused[
                    re.sub(r"\d+", "N", f"{type(error).__name__}: {error}")
                ] += 1
                pause = 1.0
            self.longest = max(self.longest, time.perf_counter() - started)
            if pause:
                await asyncio.sleep(pause)
                continue
            self.answers += 1
            self.wrong += text != self.expected[number]
            self.first.append(first)

    async def attack(self, client: httpx.AsyncClient, seed: int) -> None:
        """Try to harm the server in one way, once a second."""
        rng = random.Random(seed)  # noqa: S311 - the same attempts in every run
        kind = seed % 6
        while time.perf_counter() < self.until:
            name, outcome = "held connection", ""
            try:
                if kind == 5:
                    outcome = await hold_a_connection(client.base_url, rng)
                else:
                    name, words = hostile_request(kind, rng)
                    outcome = str((await client.request(**words)).status_code)
            except (httpx.HTTPError, OSError) as error:
                outcome = type(error).__name__
            self.hostile[f"{name}: {outcome}"] += 1
            await asyncio.sleep(1.0)

    async def run(self, url: str, clients: int, hostile: int) -> None:
        """Ask from many clients at once, beside hostile ones."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=url, timeout=600, limits=limits
        ) as client:
            asking = [self.ask_on(client) for _ in range(clients)]
            attacking = [self.attack(client, seed) for seed in range(hostile)]
            await asyncio.gather(*asking, *attacking)


def resident(process: int) -> float:
    """Return MiB of a process in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


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
    report = Report(out)
    texts = [item.instruction for item in demo_items(questions, 1)]
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    words = (theirs, model, engine, texts, segments)
    server = spawning.Process(target=serve, args=words, daemon=True)
    server.start()
    theirs.close()  # so that a server that ends early ends the waiting
    port, alone, alone_first, batch_seconds, same = ours.recv()
    in_batch = len(texts) / batch_seconds
    report.add(what="questions/s of generate()", value=in_batch)
    report.add(what="its answers equal to the single run", value=same)
    url = f"http://127.0.0.1:{port}"

    def start_load(length: float) -> ServerLoad:
        return ServerLoad(texts, alone, time.perf_counter() + length)

    asyncio.run(start_load(min(20, seconds)).run(url, clients, 0))  # warms up
    health, sends_health = spawning.Pipe()
    watched = (sends_health, url, seconds)
    spawning.Process(target=measure_health, args=watched, daemon=True).start()
    report.add(what="MiB resident before", value=resident(server.pid or 0))
    started, measured = time.perf_counter(), start_load(seconds)
    asyncio.run(measured.run(url, clients, hostile))
    served = measured.answers / (time.perf_counter() - started)
    report.add(what="MiB resident after", value=resident(server.pid or 0))
    replies = health.recv()
    server.terminate()
    figures = {
        "questions/s served": served,
        "served / generate()": served / in_batch,
        "answers": measured.answers,
        "other than the single run": measured.wrong,
        **{f"refused: {kind}": n for kind, n in sorted(measured.refused.items())},
        "longest seconds to an answer or a refusal": measured.longest,
        "median seconds to the first segment alone": statistics.median(alone_first),
        "median seconds to the first segment loaded": statistics.median(measured.first),
        "/health, 99th percentile": statistics.quantiles(replies, n=100)[98],
        "/health, longest": max(replies),
        **dict(sorted(measured.hostile.items())),
    }
    for what, value in figures.items():
        report.add(what=what, value=value)
    report.print()


if __name__ == "__main__":
    main()
