"""One request to an endpoint, with time limits, a bounded reply, repetitions and waits. Knows no label."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from critic.teacher.base import BadReplyError, TeacherError
from critic.teacher.config import EndpointConfig
from critic.teacher.pacing import Pace
from selfrag.engines.http_replies import retry_after, server_message

T = TypeVar("T")

MOST_BYTES = 1 << 20
"""Most bytes of a reply that are read."""

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 530)})
"""Statuses that may not come back when the same request is sent again."""

TOO_LONG = -1
"""Stands for the status of a reply of more than `MOST_BYTES`."""

_ONE_TEMPERATURE = re.compile(
    r"(?:unsupported|not support|only the default).{0,60}temperature"
    r"|temperature.{0,60}(?:unsupported|not support|only the default)",
    re.IGNORECASE,
)
"""How hosted reasoning models say that they take no temperature but their own."""

_QUOTA = ("insufficient_quota", "billing_hard_limit_reached")


@dataclass(frozen=True, slots=True)
class Sent(Generic[T]):
    """How a request ended.

    Attributes:
        status: of the last reply; 0 where there was none, `TOO_LONG` for one that was not read to its end.
        content: of the last reply, at most `MOST_BYTES`.
        requests: how many times it was sent.
        reason: why the reply is no good; empty where there is a value.
        value: what the reply was parsed to.
    """

    status: int
    content: bytes
    requests: int
    reason: str = ""
    value: T | None = None


class Sender:
    """Connections to one endpoint. Use it as an async context manager, from one event loop only."""

    def __init__(self, config: EndpointConfig) -> None:
        import httpx

        self._config = config
        self._key = config.key()
        self._pace = Pace(config.requests_per_minute)
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(config.timeout, connect=config.connect_timeout, pool=None),
            limits=httpx.Limits(max_connections=config.concurrency),
        )

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, body: Mapping[str, Any], parse: Callable[[bytes], T]) -> Sent[T]:
        """Send a body until there is an answer, the endpoint refuses it, or the repetitions are used up.

        Args:
            body: of the request, as JSON.
            parse: makes a value of a reply of status 200; `BadReplyError` counts as no answer.

        Raises:
            TeacherError: the key is refused, there is no such route or model, the quota is used up, or the endpoint
                asks to wait longer than `longest_wait`.
        """
        wait = self._config.backoff
        last: Sent[T] = Sent(0, b"", 0)
        for attempt in range(1, self._config.retries + 2):
            await self._pace.turn()
            last, pause = await self._once(body, attempt)
            if last.status == 200 and not last.reason:
                try:
                    return replace(last, value=parse(last.content))
                except BadReplyError as error:
                    last = replace(last, reason=str(error))
            elif last.status not in PASSING | {0}:
                break
            if attempt <= self._config.retries:
                self._pace.hold(pause)
                spread = wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads repetitions, hides nothing
                await asyncio.sleep(min(max(spread, pause), self._config.longest_wait))
                wait *= 2
        return last

    def hidden(self, text: str) -> str:
        """Text without the key, should an endpoint repeat it."""
        return text.replace(self._key, "***") if self._key else text

    async def _once(self, body: Mapping[str, Any], attempt: int) -> tuple[Sent[T], float]:
        """One request: how it ended, and how many seconds the endpoint asks to wait."""
        import httpx

        try:
            async with asyncio.timeout(self._config.timeout):
                status, headers, content, whole = await self._exchange(body)
        except (TimeoutError, httpx.TimeoutException):
            return Sent(0, b"", attempt, f"no answer within {self._config.timeout:g} s"), 0.0
        except httpx.RequestError as error:
            said = " ".join(str(error).split()) or type(error).__name__
            return Sent(0, b"", attempt, self.hidden(f"no answer: {said}")), 0.0
        if not whole:
            # Not sent again: it would be as long, and has to be paid for.
            return Sent(TOO_LONG, content, attempt, f"a reply of more than {MOST_BYTES:,} bytes"), 0.0
        if status == 200:
            return Sent(status, content, attempt), 0.0
        message = self.hidden(server_message(content))
        pause = retry_after(headers) if status in PASSING else 0.0
        self._give_up(status, headers, message, content, pause)
        return Sent(status, content, attempt, f"status {status}: {message}"), pause

    async def _exchange(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], bytes, bool]:
        content = bytearray()
        async with self._http.stream("POST", self._config.route, json=body) as reply:
            async for part in reply.aiter_bytes():
                content += part
                if len(content) > MOST_BYTES:
                    return reply.status_code, reply.headers, bytes(content[:MOST_BYTES]), False
            return reply.status_code, reply.headers, bytes(content), True

    def _give_up(self, status: int, headers: Mapping[str, str], message: str, content: bytes, pause: float) -> None:
        """Raise where no other request would fare better."""
        config = self._config
        if status in (401, 403):
            state = "is refused" if self._key else "is not set"
            raise TeacherError(f"{config.url} answered {status}: the key in {config.api_key_env} {state} ({message})")
        if status in (404, 405):
            raise TeacherError(
                f"{config.route} answered {status} ({message}); check the url and the model {config.model}"
            )
        if status == 400 and config.temperature != 1 and _ONE_TEMPERATURE.search(message):
            raise TeacherError(
                f"{config.model} does not take temperature {config.temperature:g} ({message}); give --temperature 1"
            )
        if 300 <= status < 400:
            raise TeacherError(f"{config.route} points to {headers.get('Location', 'another place')!r}; give that url")
        if status == 402 or (status == 429 and any(code.encode() in content for code in _QUOTA)):
            raise TeacherError(f"the quota of {config.url} is used up ({message}); run the same again when it is not")
        if pause > config.longest_wait:
            raise TeacherError(
                f"{config.url} asks to wait {pause:,.0f} s ({message}); run the same again later,"
                " or give a higher --longest-wait"
            )
