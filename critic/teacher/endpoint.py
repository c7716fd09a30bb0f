"""A teacher behind an OpenAI-compatible endpoint, hosted or a local `vllm serve`."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from critic.cases import Case
from critic.teacher.base import BadReplyError, Outcome, Reply, TeacherError
from critic.teacher.config import Constraint, EndpointConfig
from critic.teacher.cost import by_bytes
from critic.teacher.labels import Answer, body, bounded, read
from critic.teacher.prompts import fingerprint, prompt
from retrieval.errors import UserError
from selfrag.engines.http_replies import retry_after, server_message


class Pace:
    """Starts requests at an even pace. Use it from one event loop only.

    Args:
        per_minute: most requests started a minute; None for no limit.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until a request may start."""
        while True:
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._interval
                return
            # Not longer than to the pause's end as known now: another request may lengthen it meanwhile.
            await asyncio.sleep(self._next - now)

    def hold(self, seconds: float) -> None:
        """Let nothing start for so many seconds."""
        self._next = max(self._next, time.monotonic() + seconds)


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


Item = TypeVar("Item")


def drain(source: Callable[[], AsyncIterator[Item]]) -> Generator[Item]:
    """The values of `source()`, iterated by an event loop on a thread of its own.

    Ends the loop when the iterator is closed or left early; an exception of the source is raised here.
    """
    arrived: queue.SimpleQueue[tuple[bool, Item | BaseException | None]] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        try:
            async for value in source():
                arrived.put((True, value))
        except BaseException as error:
            arrived.put((False, error))
            if not isinstance(error, Exception):
                raise
        else:
            arrived.put((False, None))

    task = loop.create_task(run())

    def serve() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(asyncio.wait([task]))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    thread = threading.Thread(target=serve, name="teacher", daemon=True)
    thread.start()
    try:
        while True:
            more, value = arrived.get()
            if more:
                yield value  # type: ignore[misc]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        thread.join(timeout=10.0)


_AUTO = (Constraint.CHOICE, Constraint.SCHEMA, Constraint.FREE)
_TRIALS = 3
"""Cases that may go without a label under every constraint before answers are taken as they come."""

_REFUSED = frozenset({400, 413, 422, 501})
_DECIDING = ("model", "api", "constraint", "temperature", "max_tokens", "seed", "min_coverage")


class EndpointTeacher:
    """Labels by asking an endpoint, many cases at once.

    Args:
        config: how to reach it and how to ask.
        name: what reports and `label_source` call it; the model's name by default.
    """

    def __init__(self, config: EndpointConfig, name: str | None = None) -> None:
        self.config = config
        self._name = name or config.model
        self._constraint: Constraint | None = None if config.constraint is Constraint.AUTO else config.constraint
        self._in_vain = 0
        self._new_limit_name = False

    @property
    def name(self) -> str:
        """What reports and `label_source` call it."""
        return self._name

    def identity(self) -> Mapping[str, Any]:
        """Settings that decide labels, and the fingerprint of all prompts. No key."""
        settings = asdict(self.config)
        return {"teacher": self._name, **{key: settings[key] for key in _DECIDING}, "prompts": fingerprint()}

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, Reply]]:
        """One reply a case, in the order of arrival; see `Teacher.label`."""
        return drain(lambda: self.replies(cases))

    async def replies(self, cases: Iterable[Case]) -> AsyncIterator[tuple[int, Reply]]:
        """The same for callers that have an event loop."""
        source = enumerate(cases)
        settling = asyncio.Lock()
        waiting: set[asyncio.Task[tuple[int, Reply]]] = set()
        async with Sender(self.config) as sender:
            try:
                more = True
                while more or waiting:
                    while more and len(waiting) < self.config.concurrency:
                        if (item := next(source, None)) is None:
                            more = False
                        else:
                            waiting.add(asyncio.create_task(self._one(sender, settling, *item)))
                    if waiting:
                        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                        # What has arrived goes out before an error of another case ends the run.
                        for task in sorted(done, key=lambda task: task.exception() is not None):
                            yield task.result()
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    async def _one(self, sender: Sender, settling: asyncio.Lock, position: int, case: Case) -> tuple[int, Reply]:
        if self._constraint is None:
            async with settling:
                if self._constraint is None:
                    return position, await self._settle(sender, case)
        return position, await self._ask(sender, case, self._constraint)

    async def _settle(self, sender: Sender, case: Case) -> Reply:
        """Find the strictest constraint that the endpoint takes and obeys, by asking about one case.

        An endpoint that does not know a constraint refuses the request or ignores it. Where no way gives a label, the
        case may be at fault, so the next one is tried, up to a limit.
        """
        total = Reply(Outcome.FAILED)
        for constraint in _AUTO:
            reply = _after(total, await self._ask(sender, case, constraint))
            if reply.outcome is Outcome.LABELLED:
                self._constraint = constraint
                return reply
            if reply.outcome is Outcome.FAILED and not reply.constraint:
                return reply  # no answer at all says nothing about constraints
            total = reply
        if total.outcome is Outcome.ASIDE:
            self._in_vain += 1
            if self._in_vain == _TRIALS:
                self._constraint = Constraint.FREE
        return total

    async def _ask(self, sender: Sender, case: Case, constraint: Constraint) -> Reply:
        try:
            content = body(case, self.config, constraint)
        except UserError as error:
            return Reply(Outcome.FAILED, reason=str(error))
        sent = await self._post(sender, content, lambda reply: read(reply, case, self.config, constraint))
        if (answer := sent.value) is not None:
            if not answer.prompt_tokens:  # the endpoint does not count, and a cost limit must not stand still
                sent_tokens = by_bytes(prompt(case, letters=constraint is Constraint.LOGPROBS))
                answer = replace(answer, prompt_tokens=sent_tokens, completion_tokens=by_bytes(answer.raw))
            return self._reply(sender, answer, constraint, sent.requests)
        raw = sender.hidden(bounded(sent.content.decode("utf-8", "replace")))
        if sent.status == TOO_LONG:
            return Reply(Outcome.ASIDE, raw=raw, reason=sent.reason, constraint=constraint, requests=sent.requests)
        refused = constraint if sent.status in _REFUSED else ""
        return Reply(Outcome.FAILED, raw=raw, reason=sent.reason, constraint=refused, requests=sent.requests)

    async def _post(self, sender: Sender, content: dict[str, Any], parse: Callable[[bytes], Answer]) -> Sent[Answer]:
        if self._new_limit_name:
            content = _renamed(content)
        sent = await sender.post(content, parse)
        if sent.status == 400 and not self._new_limit_name and "max_completion_tokens" in sent.reason:
            self._new_limit_name = True  # newer hosted models know the limit under this name only
            again = await sender.post(_renamed(content), parse)
            return replace(again, requests=again.requests + sent.requests)
        return sent

    def _reply(self, sender: Sender, answer: Answer, constraint: Constraint, requests: int) -> Reply:
        return Reply(
            Outcome.ASIDE if answer.label is None else Outcome.LABELLED,
            answer.label,
            sender.hidden(answer.raw),
            answer.reason,
            self._name,
            constraint,
            requests,
            answer.prompt_tokens,
            answer.completion_tokens,
            answer.distribution,
            answer.coverage,
        )


def _renamed(content: dict[str, Any]) -> dict[str, Any]:
    return {("max_completion_tokens" if key == "max_tokens" else key): value for key, value in content.items()}


def _after(earlier: Reply, reply: Reply) -> Reply:
    """A reply that also bears the cost of an earlier attempt."""
    return replace(
        reply,
        requests=earlier.requests + reply.requests,
        prompt_tokens=earlier.prompt_tokens + reply.prompt_tokens,
        completion_tokens=earlier.completion_tokens + reply.completion_tokens,
    )
