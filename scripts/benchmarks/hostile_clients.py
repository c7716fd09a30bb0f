"""Clients that try to harm a server on this machine, for `bench_server.py --hostile N`; all stop by themselves."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

import httpx

PAUSE = 1.0
"""Seconds between two attempts of a client."""
Attempt = Callable[[httpx.AsyncClient, random.Random], Awaitable[object]]


def chat(content: str, **settings: Any) -> dict[str, Any]:
    """Return the body of a chat completion."""
    turns = [
        {"role": "system", "content": content},
        {"role": "user", "content": "Who are you?"},
    ]
    return {"model": "selfrag", "messages": turns, "selfrag": settings}


async def post(client: httpx.AsyncClient, **body: Any) -> int:
    """Ask for a chat completion, and return the status."""
    return (await client.post("/v1/chat/completions", **body)).status_code


async def send_long_conversation(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Send a system turn of up to 4 MB."""
    words = "word " * rng.choice([100_000, 190_000, 800_000])
    return await post(client, json=chat(words))


async def send_much_evidence(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Let the server keep an answer with 1.5 MB of evidence that cannot be compressed."""
    evidence = [
        {"id": str(number), "text": rng.randbytes(7_500).hex()} for number in range(100)
    ]
    body = chat(
        "Be short.",
        evidence=evidence,
        mode="always",
        passages=5,
        max_segments=1,
        segment_tokens=5,
    )
    return await post(client, json=body)


async def send_broken_json(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Send NaN, nesting, or half of a body."""
    content = rng.choice(
        [
            '{"model": NaN}',
            "[" * 100_000,
            '{"model": "selfrag", "messages"',
            '{"a": 1e400}',
        ]
    )
    headers = {"Content-Type": "application/json"}
    return await post(client, content=content, headers=headers)


async def send_endless_trace(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Ask to rank a trace in which a node is its own parent."""
    trace = {
        "question": "Q",
        "decoding": {},
        "best": 0,
        "options": [],
        "decisions": [],
        "nodes": [{"id": 0, "parent": 0}],
    }
    return (await client.post("/v1/rescore", json={"trace": trace})).status_code


async def come_from_another_site(client: httpx.AsyncClient, rng: random.Random) -> int:
    """Ask under a name that another site may have."""
    return (
        await client.get("/v1/models", headers={"Host": "evil.example"})
    ).status_code


async def hold_a_connection(client: httpx.AsyncClient, rng: random.Random) -> str:
    """Send nothing, or a byte a second, until the server ends the connection."""
    reader, writer = await asyncio.open_connection(
        client.base_url.host, client.base_url.port
    )
    started = time.monotonic()
    with suppress(ConnectionError):
        writer.write(
            rng.choice([b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
        )
        while not reader.at_eof() and time.monotonic() - started < 60:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(100), 1.0)
            writer.write(b"x")
    writer.close()
    return "held" if time.monotonic() - started >= 60 else "closed by the server"


ATTEMPTS: Sequence[Attempt] = (
    send_long_conversation,
    send_much_evidence,
    send_broken_json,
    send_endless_trace,
    come_from_another_site,
    hold_a_connection,
)


async def attack(url: str, clients: int, until: float) -> dict[str, int]:
    """Run hostile clients, each of one kind, until a time of `time.perf_counter`; return what they got, counted."""
    outcomes: Counter[str] = Counter()

    async def repeat(attempt: Attempt, seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - the same attempts in every run
        while time.perf_counter() < until:
            try:
                outcome = await attempt(client, rng)
            except (httpx.HTTPError, OSError) as error:
                outcome = type(error).__name__
            outcomes[f"{attempt.__name__}: {outcome}"] += 1
            await asyncio.sleep(PAUSE)

    async with httpx.AsyncClient(
        base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)
    ) as client:
        attempts = islice(cycle(ATTEMPTS), clients)
        await asyncio.gather(
            *(repeat(attempt, seed) for seed, attempt in enumerate(attempts))
        )
    return dict(sorted(outcomes.items()))


async def watch_health(url: str, until: float) -> list[float]:
    """Return the seconds of `/health`, asked four times a second until a time of `time.perf_counter`."""
    seconds = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while time.perf_counter() < until:
            started = time.perf_counter()
            (await client.get("/health")).raise_for_status()
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.25)
    return seconds
