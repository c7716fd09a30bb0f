"""The client of every OpenAI-compatible server: retries, pace, time limits, and keys that are never printed.

Chat models that label, judge or write behind an address are asked through `Client.negotiate`: it finds the strictest
way in which the server holds a reply to a constraint.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum, auto
from functools import cache
from typing import Any, Generic, Self, TypeVar, cast

from retrieval.content import ENCODINGS, Content
from selfrag.common.errors import EngineError, count_of
from selfrag.common.untrusted import printable
from selfrag.engines.server_config import ServerConfig

LONGEST_MESSAGE = 300
"""Characters of a server's own words that are repeated, at most."""

TRIALS = 3
"""Requests that may end without a valid reply under every constraint before replies are taken as they come."""

REFUSED = frozenset({400, 404, 413, 422, 501})
"""Statuses of a server that does not take a field of the request."""

T = TypeVar("T")
ModeT = TypeVar("ModeT", bound=StrEnum)


class BadReplyError(ValueError):
    """A reply that does not hold what was asked for; the text says what is wrong, in one line."""


@dataclass(frozen=True, slots=True)
class ServerReply(Generic[T]):
    """How a request ended."""

    status: int = 0  # of the last reply; 0 where there was none
    content: bytes = b""  # of the last reply, at most `Client.most_bytes`
    value: T | None = None  # what was read from the reply
    reason: str = ""  # why there is no value, in one line; empty where there is one
    requests: int = 0  # how many times it was sent
    pause: float = 0.0  # seconds that the server asks to wait
    location: str = ""  # where the server points to instead
    connected: bool = True  # whether the connection held until the end
    whole: bool = True  # whether the reply was read to its end


class Adherence(Enum):
    """What the reply to a request with a constraint says about the server."""

    OBEYED = auto()  # the reply is what the constraint allows
    IGNORED = auto()  # a reply, but another one
    REFUSED = auto()  # the server does not take the request
    UNKNOWN = auto()  # no answer, or a broken server: nothing about constraints


@dataclass(slots=True)
class ServerTraits:
    """What clients of one server have found out about it; a later client starts with it."""

    limit_name: str = "max_tokens"  # field that limits new tokens
    # alternatives of a token that it gives at most; None where it has refused no number of them
    most_alternatives: int | None = None
    # fields without which a request is still worth its reply; a server that refuses one by its name never gets it again
    optional: frozenset[str] = frozenset()
    dropped: set[str] = field(default_factory=set)  # optional fields that it refused


@dataclass(slots=True)
class Negotiation:
    """The mode in which a server does what it is asked for, such as to hold a reply to a constraint."""

    mode: StrEnum | None = None  # None until a reply has shown it
    failed_trials: int = 0  # requests without a valid reply in any mode


class Client:
    """Connections to one server. Use it as an async context manager, from one event loop only.

    Requests must be safe to repeat: greedy ones are, and a label may be asked for twice.

    With a hint of what to do, a server that is not there is an error; without one, `send` returns what happened.
    """

    passing = frozenset({429, 502, 503, 504})
    """What may not come back when the request is sent again; 0 stands for no answer in time, 200 for an unreadable."""

    most_bytes = 1 << 28
    """Bytes of a reply that are read, at most."""

    def __init__(
        self, config: ServerConfig, hint: str = "", traits: ServerTraits | None = None
    ) -> None:
        import httpx

        self._config = config
        self._hint = hint
        self._traits = traits or ServerTraits()
        self._negotiating = asyncio.Lock()
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._key = config.key()
        self._interval = (
            60.0 / config.requests_per_minute if config.requests_per_minute else 0.0
        )
        self._next = 0.0  # when the next request may start
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": ENCODINGS}
            | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            verify=_ssl_context(),
            timeout=httpx.Timeout(None, connect=config.connect_timeout),
            limits=httpx.Limits(max_connections=config.max_concurrency + 2),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(
        self,
        method: str,
        address: str,
        body: Callable[[], Mapping[str, Any] | None],
        parse: Callable[[bytes], T],
        seconds: float | None = None,
    ) -> ServerReply[T]:
        """Send a request, when a slot is free, until it is answered or refused, or the repetitions are used up.

        `body` makes the JSON anew for every time that the request is sent. `parse` reads a reply of status 200 or
        raises a `BadReplyError`. A whole answer may take `seconds`, by default `read_timeout`.

        Raises:
            EngineError: the key is refused, or there is no server and the client has a hint.
        """
        config = self._config
        limit = seconds or config.read_timeout
        wait = config.backoff
        requests = 0
        tries = 0
        async with self._slots:
            while True:
                await self._turn()
                content = self._adapted(body())
                reply = await self._once(method, address, content, parse, limit)
                requests += 1
                if self._learns(reply, content):
                    continue
                tries += 1
                # A reply that is too long is not asked for again: it would be as long, and has to be paid for.
                again = (
                    reply.reason
                    and reply.whole
                    and (not reply.connected or reply.status in self.passing)
                )
                if not again or tries > config.retries:
                    break
                pause = min(reply.pause, config.longest_wait)
                # nothing else starts either
                self._next = max(self._next, time.monotonic() + pause)
                spread = wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads repetitions, hides nothing
                await asyncio.sleep(min(max(spread, pause), config.longest_wait))
                wait *= 2
        if self._hint and not reply.connected:
            raise EngineError(
                f"no server at {config.url} after {count_of(tries, 'attempts')} ({reply.reason}); {self._hint}"
            )
        return replace(reply, requests=requests)

    def give_up(self, reply: ServerReply[Any], message: str) -> None:
        """Raise where no other request would fare better; `message` is what the server says."""
        if reply.status == 401:
            raise EngineError(self.refusal(reply, message))

    def refusal(self, reply: ServerReply[Any], message: str) -> str:
        """Say that the key is refused, and where it comes from."""
        state = "is refused" if self._key else "is not set"
        return f"{self._config.url} answered {reply.status}: the key in {self._config.key_source} {state} ({message})"

    def hidden(self, text: str) -> str:
        """Text without the key, should a server repeat it."""
        return text.replace(self._key, "***") if self._key else text

    async def negotiate(
        self,
        negotiation: Negotiation,
        modes: Sequence[ModeT],
        attempt: Callable[[ModeT], Awaitable[tuple[T, Adherence]]],
    ) -> T:
        """Return the result of a request under the strictest mode that the server obeys.

        A server that does not know a mode refuses the request or ignores the constraint. The first request that the
        server obeys decides for all later ones. A request that fails in every mode may itself be at fault: the next one
        tries again, up to `TRIALS` times.

        Args:
            negotiation: what earlier requests have shown.
            modes: from the strictest mode to no constraint at all.
            attempt: sends the request in a mode.
        """
        if negotiation.mode is None:
            async with self._negotiating:
                if negotiation.mode is None:
                    return await self._find_mode(negotiation, modes, attempt)
        result, _ = await attempt(cast(ModeT, negotiation.mode))
        return result

    async def _find_mode(
        self,
        negotiation: Negotiation,
        modes: Sequence[ModeT],
        attempt: Callable[[ModeT], Awaitable[tuple[T, Adherence]]],
    ) -> T:
        for mode in modes:
            result, adherence = await attempt(mode)
            if adherence is Adherence.OBEYED:
                negotiation.mode = mode
            if adherence in (Adherence.OBEYED, Adherence.UNKNOWN):
                return result
        if adherence is Adherence.IGNORED:
            negotiation.failed_trials += 1
            if negotiation.failed_trials == TRIALS:
                negotiation.mode = modes[-1]
        return result

    def _adapted(self, content: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return a body as the server takes it: the limit under its name, without fields that were refused."""
        if content is None:
            return None
        traits = self._traits
        adapted = {
            name: value for name, value in content.items() if name not in traits.dropped
        }
        if "logprobs" in traits.dropped:
            adapted.pop("top_logprobs", None)  # servers refuse it alone
        name, count = _alternatives_of(adapted)
        if count and traits.most_alternatives is not None:
            adapted[name] = min(count, traits.most_alternatives)
        if "max_tokens" in adapted:
            adapted[traits.limit_name] = adapted.pop("max_tokens")
        return adapted

    def _learns(
        self, reply: ServerReply[Any], content: Mapping[str, Any] | None
    ) -> bool:
        """Return whether a refusal names a field that can be sent otherwise: by a newer name, lower, or not at all."""
        if reply.status not in (400, 422) or content is None:
            return False
        traits, reason = self._traits, reply.reason
        if _NEW_LIMIT in reason and "max_tokens" in content:
            traits.limit_name = _NEW_LIMIT
            return True
        refused = [
            name for name in traits.optional & content.keys() if _refuses(reason, name)
        ]
        _, count = _alternatives_of(content)
        if (
            count
            and "logprobs" in traits.optional
            and "logprob" in reason.casefold()
            and (not refused or _LIMITING.search(reason))
        ):
            fewer = _fewer(count, reason)
            if fewer:
                # another request may have learned meanwhile
                traits.most_alternatives = min(fewer, traits.most_alternatives or fewer)
                return True
            refused = ["logprobs"]
        traits.dropped.update(refused)
        return bool(refused)

    async def _turn(self) -> None:
        """Wait until a request may start; another one may lengthen the pause meanwhile."""
        while (now := time.monotonic()) < self._next:
            await asyncio.sleep(self._next - now)
        self._next = now + self._interval

    async def _once(
        self,
        method: str,
        address: str,
        content: Mapping[str, Any] | None,
        parse: Callable[[bytes], T],
        seconds: float,
    ) -> ServerReply[T]:
        import httpx

        try:
            async with (
                asyncio.timeout(seconds),
                self._http.stream(method, address, json=content) as answer,
            ):
                unfolded = Content(
                    answer.headers.get("Content-Encoding", ""), self.most_bytes + 1
                )
                async for part in answer.aiter_raw():
                    if not unfolded.add(part):
                        break
        except TimeoutError:
            return ServerReply(reason=f"no answer within {seconds:g} s")
        except httpx.RequestError as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            return ServerReply(
                reason=self.hidden(f"no answer: {cause}"), connected=False
            )
        except ValueError as error:
            return ServerReply(
                answer.status_code, reason=self.hidden(str(error)), whole=False
            )
        received = bytes(unfolded)
        reply: ServerReply[T] = ServerReply(
            answer.status_code, received[: self.most_bytes]
        )
        if len(received) > self.most_bytes:
            return replace(
                reply,
                reason=f"a reply of more than {count_of(self.most_bytes, 'bytes', form=',')}",
                whole=False,
            )
        if reply.status == 200:
            try:
                return replace(reply, value=parse(reply.content))
            except BadReplyError as error:
                reason = printable(self.hidden(str(error)))[:LONGEST_MESSAGE]
                return replace(reply, reason=reason)
        message = self.hidden(server_message(reply.content))
        reply = replace(
            reply,
            reason=f"status {reply.status}: {message}",
            pause=retry_after(answer.headers) if reply.status in self.passing else 0.0,
            location=printable(self.hidden(answer.headers.get("Location", ""))),
        )
        self.give_up(reply, message)
        return reply


@cache
def _ssl_context() -> Any:
    """Return the context of all clients: to read the certificates takes as long as many requests."""
    import httpx

    return httpx.create_ssl_context()


def _refuses(message: str, name: str) -> bool:
    """Return whether a refusal is about the field of this name, as in `logprobs is not supported with this model`."""
    return (
        re.search(rf"\b{name}\b", message) is not None
        and _REFUSING.search(message) is not None
    )


def _alternatives_of(content: Mapping[str, Any]) -> tuple[str, int]:
    """Return the field that asks for alternatives of a token, and for how many; 0 where nothing does."""
    name = "top_logprobs" if "top_logprobs" in content else "logprobs"
    count = content.get(name)
    return name, count if type(count) is int else 0


def _fewer(count: int, refusal: str) -> int:
    """Return how many alternatives a server may give: the largest number below `count` that it names, or half."""
    numbers = [int(digits) for digits in re.findall(r"\b\d{1,3}\b", refusal)]
    allowed = [number for number in numbers if 0 < number < count]
    return max(allowed, default=count // 2)


_NEW_LIMIT = "max_completion_tokens"
_LIMITING = re.compile(
    r"less|at most|up to|max|between|greater|above|exceed|range|[<>\u2264]",
    re.IGNORECASE,
)
_REFUSING = re.compile(
    r"not (?:be )?(?:supported|allowed|permitted)|n[o']t support|unsupported|unknown|unrecognized|unexpected|extra",
    re.IGNORECASE,
)
_MOST_TOKENS = 10**9


def response_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of OpenAI's API that holds a reply to a JSON schema."""
    json_schema = {"name": name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def label_schema(labels: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of an object whose one field `label` is one of the labels."""
    return {
        "type": "object",
        "properties": {"label": {"type": "string", "enum": list(labels)}},
        "required": ["label"],
        "additionalProperties": False,
    }


def token_count(usage: Any, name: str) -> int:
    """Return a count of tokens that a server reports, or 0 where it reports none."""
    count = usage.get(name) if isinstance(usage, Mapping) else None
    return count if type(count) is int and 0 <= count <= _MOST_TOKENS else 0


NO_LOGPROB = -9999.0
"""What servers write for a log-probability of minus infinity."""


def as_logprob(value: Any) -> float | None:
    """Return a value of a reply as a log-probability of at least `NO_LOGPROB`; None where it is none."""
    if type(value) not in (int, float) or not value <= 1e-3:  # NaN is not, either
        return None
    return float(max(value, NO_LOGPROB))


def json_of(content: bytes) -> Any:
    """Return the value that a reply holds; a `BadReplyError` where it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BadReplyError(f"the reply is not JSON: {content[:80]!r}") from None


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a `Retry-After` header asks to wait, given in seconds or as a date; 0 where it says nothing."""
    value = headers.get("Retry-After") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = (moment - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


def server_message(content: bytes) -> str:
    """Return the server's own words in the body of an error, in one line. Untrusted."""
    data = None
    with suppress(BadReplyError):
        data = json_of(content)
    match data:
        case (
            {"error": {"message": str(text)}}
            | {"error": str(text)}
            | {"detail": str(text)}
            | {"message": str(text)}
        ):
            pass
        case _:
            text = content[: 4 * LONGEST_MESSAGE].decode("utf-8", "replace")
    return (
        printable(" ".join(text[: 8 * LONGEST_MESSAGE].split()))[:LONGEST_MESSAGE]
        or "no reason given"
    )
