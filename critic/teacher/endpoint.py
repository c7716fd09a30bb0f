"""A teacher behind an OpenAI-compatible endpoint, hosted or a local `vllm serve`: many cases at once, with retries."""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from critic.cases import Case
from critic.teacher.base import Constraint, EndpointConfig, Outcome, Reply, TeacherError
from critic.teacher.prompts import Answer, BadReplyError, body, bounded, read
from critic.teacher.run import by_bytes
from retrieval.errors import UserError
from selfrag.engines.http import retry_after, server_message

MOST_BYTES = 1 << 20
"""Most bytes of a reply that are read."""

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 530)})
"""Statuses that may not come back when the same request is sent again."""

_AUTO = (Constraint.CHOICE, Constraint.SCHEMA, Constraint.FREE)
_TRIALS = 3
"""Cases that may go without a label under every constraint before answers are taken as they come."""

_REFUSED = frozenset({400, 413, 422, 501})
_DECIDING = ("model", "api", "constraint", "temperature", "max_tokens", "seed", "min_coverage")
_QUOTA = ("insufficient_quota", "billing_hard_limit_reached")
_ONE_TEMPERATURE = re.compile(
    r"(?:unsupported|not support|only the default).{0,60}temperature"
    r"|temperature.{0,60}(?:unsupported|not support|only the default)",
    re.IGNORECASE,
)
"""How hosted reasoning models say that they take no temperature but their own."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sent:
    """How a request ended."""

    status: int = 0  # of the last reply; 0 where there was none
    content: bytes = b""  # of the last reply, at most `MOST_BYTES`
    requests: int = 0  # how many times it was sent
    reason: str = ""  # why the reply is no good; empty where there is an answer
    answer: Answer | None = None
    pause: float = 0.0  # seconds that the endpoint asks to wait
    whole: bool = True  # whether the reply was read to its end


class Sender:
    """Connections to one endpoint. Use it as an async context manager, from one event loop only."""

    def __init__(self, config: EndpointConfig) -> None:
        import httpx

        self._config = config
        self._key = config.key()
        self._interval = 60.0 / config.requests_per_minute if config.requests_per_minute else 0.0
        self._next = 0.0  # when the next request may start
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(config.timeout, connect=config.connect_timeout, pool=None),
            limits=httpx.Limits(max_connections=config.concurrency),
        )

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def post(self, content: Mapping[str, Any], parse: Callable[[bytes], Answer]) -> Sent:
        """Send a body until there is an answer, the endpoint refuses it, or the repetitions are used up.

        Args:
            content: of the request, as JSON.
            parse: reads a reply of status 200; `BadReplyError` counts as no answer.

        Raises:
            TeacherError: the key is refused, there is no such route or model, the quota is used up, or the endpoint
                asks to wait longer than `longest_wait`.
        """
        wait, sent = self._config.backoff, Sent()
        for attempt in range(1, self._config.retries + 2):
            await self._turn()
            sent = replace(await self._once(content, parse), requests=attempt)
            # A reply that is too long is not asked for again: it would be as long, and has to be paid for.
            if sent.answer is not None or not sent.whole or sent.status not in PASSING | {0, 200}:
                break
            if attempt <= self._config.retries:
                self._next = max(self._next, time.monotonic() + sent.pause)  # nothing else starts either
                spread = wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads repetitions, hides nothing
                await asyncio.sleep(min(max(spread, sent.pause), self._config.longest_wait))
                wait *= 2
        return sent

    def hidden(self, text: str) -> str:
        """Text without the key, should an endpoint repeat it."""
        return text.replace(self._key, "***") if self._key else text

    async def _turn(self) -> None:
        """Wait until a request may start; another one may lengthen the pause meanwhile."""
        while (now := time.monotonic()) < self._next:
            await asyncio.sleep(self._next - now)
        self._next = now + self._interval

    async def _once(self, content: Mapping[str, Any], parse: Callable[[bytes], Answer]) -> Sent:
        import httpx

        found, headers, status, whole = bytearray(), httpx.Headers(), 0, True
        try:
            async with (
                asyncio.timeout(self._config.timeout),
                self._http.stream("POST", self._config.route, json=content) as reply,
            ):
                status, headers = reply.status_code, reply.headers
                async for part in reply.aiter_bytes():
                    found += part
                    if len(found) > MOST_BYTES:
                        whole = False
                        break
        except (TimeoutError, httpx.TimeoutException):
            return Sent(reason=f"no answer within {self._config.timeout:g} s")
        except httpx.RequestError as error:
            said = " ".join(str(error).split()) or type(error).__name__
            return Sent(reason=self.hidden(f"no answer: {said}"))
        received = bytes(found[:MOST_BYTES])
        if not whole:
            return Sent(status, received, reason=f"a reply of more than {MOST_BYTES:,} bytes", whole=False)
        if status == 200:
            try:
                return Sent(status, received, answer=parse(received))
            except BadReplyError as error:
                return Sent(status, received, reason=str(error))
        message = self.hidden(server_message(received))
        pause = retry_after(headers) if status in PASSING else 0.0
        self._give_up(status, headers, message, received, pause)
        return Sent(status, received, reason=f"status {status}: {message}", pause=pause)

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


class EndpointTeacher:
    """Labels by asking an endpoint.

    Args:
        config: how to reach it and how to ask.
        name: what reports and `label_source` call it; the model's name by default.
    """

    def __init__(self, config: EndpointConfig, name: str | None = None) -> None:
        self.config = config
        self.name = name or config.model
        self._constraint: Constraint | None = None if config.constraint is Constraint.AUTO else config.constraint
        self._in_vain = 0
        self._new_limit_name = False

    def identity(self) -> Mapping[str, Any]:
        """Settings that decide labels, and the fingerprint of all prompts. No key."""
        settings = {key: getattr(self.config, key) for key in _DECIDING}
        return {"teacher": self.name, **settings, "prompts": self.config.forms.fingerprint}

    def label(self, cases: Iterable[Case]) -> Generator[tuple[int, Reply]]:
        """One reply a case, in the order of arrival; see `Teacher.label`."""
        return drain(self.replies(cases))

    async def replies(self, cases: Iterable[Case]) -> AsyncGenerator[tuple[int, Reply]]:
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
            reply = await self._ask(sender, case, constraint)
            total = replace(
                reply,
                requests=total.requests + reply.requests,
                prompt_tokens=total.prompt_tokens + reply.prompt_tokens,
                completion_tokens=total.completion_tokens + reply.completion_tokens,
            )
            if reply.outcome is Outcome.LABELLED:
                self._constraint = constraint
                return total
            if reply.outcome is Outcome.FAILED and not reply.constraint:
                return total  # no answer at all says nothing about constraints
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
        if (answer := sent.answer) is None:
            raw = sender.hidden(bounded(sent.content.decode("utf-8", "replace")))
            outcome = Outcome.FAILED if sent.whole else Outcome.ASIDE
            asked = constraint if sent.status in _REFUSED or not sent.whole else ""
            return Reply(outcome, raw=raw, reason=sent.reason, constraint=asked, requests=sent.requests)
        if not answer.prompt_tokens:  # the endpoint does not count, and a cost limit must not stand still
            tokens = by_bytes(self.config.forms.prompt(case, letters=constraint is Constraint.LOGPROBS))
            answer = replace(answer, prompt_tokens=tokens, completion_tokens=by_bytes(answer.raw))
        return Reply(
            Outcome.ASIDE if answer.label is None else Outcome.LABELLED,
            answer.label,
            sender.hidden(answer.raw),
            answer.reason,
            self.name,
            constraint,
            sent.requests,
            answer.prompt_tokens,
            answer.completion_tokens,
            answer.distribution,
            answer.coverage,
        )

    async def _post(self, sender: Sender, content: dict[str, Any], parse: Callable[[bytes], Answer]) -> Sent:
        sent = Sent()
        if not self._new_limit_name:
            sent = await sender.post(content, parse)
            if sent.status != 400 or "max_completion_tokens" not in sent.reason:
                return sent
            self._new_limit_name = True  # newer hosted models know the limit under this name only
        renamed = {("max_completion_tokens" if key == "max_tokens" else key): value for key, value in content.items()}
        again = await sender.post(renamed, parse)
        return replace(again, requests=again.requests + sent.requests)


def drain(values: AsyncGenerator[Value]) -> Generator[Value]:
    """The values of an async generator for plain code, also where an event loop runs already (a notebook).

    An event loop on a thread of its own iterates it; the loop ends when this generator is closed or left early.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="teacher", daemon=True)
    thread.start()

    async def following() -> list[Value]:
        async for value in values:
            return [value]
        return []

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await values.aclose()

    try:
        while found := asyncio.run_coroutine_threadsafe(following(), loop).result():
            yield found[0]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(timeout=10.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10.0)
        loop.close()
