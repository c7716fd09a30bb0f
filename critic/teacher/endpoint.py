"""A teacher behind an OpenAI-compatible endpoint, hosted or a local `vllm serve`: many cases at once, with retries."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from critic.cases import Case
from critic.teacher.base import Constraint, EndpointConfig, Outcome, Reply, TeacherError
from critic.teacher.prompts import body, bounded, read
from critic.teacher.run import by_bytes
from retrieval.errors import UserError
from selfrag.engines.client import Client
from selfrag.engines.client import Reply as Sent

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


class _Hosted(Client):
    """An endpoint that may cost money: what may pass is asked again, and what cannot be mended ends the run."""

    passing = frozenset({0, 200, 408, 409, 425, 429, 500, 502, 503, 504, *range(520, 530)})
    most_bytes = 1 << 20

    def __init__(self, config: EndpointConfig, learned: set[str]) -> None:
        super().__init__(config, learned=learned)
        self._settings = config

    def give_up(self, reply: Sent[Any], message: str) -> None:
        """Raise where no other request would fare better.

        Raises:
            TeacherError: the key is refused, there is no such route or model, the quota is used up, or the endpoint
                asks to wait longer than `longest_wait`.
        """
        config, status = self._settings, reply.status
        if status in (401, 403):
            raise TeacherError(self.refusal(reply, message))
        if status in (404, 405):
            raise TeacherError(
                f"{config.route} answered {status} ({message}); check the url and the model {config.model}"
            )
        if status == 400 and config.temperature != 1 and _ONE_TEMPERATURE.search(message):
            raise TeacherError(
                f"{config.model} does not take temperature {config.temperature:g} ({message}); give --temperature 1"
            )
        if 300 <= status < 400:
            raise TeacherError(f"{config.route} points to {reply.location or 'another place'!r}; give that url")
        if status == 402 or (status == 429 and any(code.encode() in reply.content for code in _QUOTA)):
            raise TeacherError(f"the quota of {config.url} is used up ({message}); run the same again when it is not")
        if reply.pause > config.longest_wait:
            raise TeacherError(
                f"{config.url} asks to wait {reply.pause:,.0f} s ({message}); run the same again later,"
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
        self._learned: set[str] = set()

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
        async with _Hosted(self.config, self._learned) as sender:
            try:
                more = True
                while more or waiting:
                    while more and len(waiting) < self.config.max_concurrency:
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

    async def _one(self, sender: _Hosted, settling: asyncio.Lock, position: int, case: Case) -> tuple[int, Reply]:
        if self._constraint is None:
            async with settling:
                if self._constraint is None:
                    return position, await self._settle(sender, case)
        return position, await self._ask(sender, case, self._constraint)

    async def _settle(self, sender: _Hosted, case: Case) -> Reply:
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

    async def _ask(self, sender: _Hosted, case: Case, constraint: Constraint) -> Reply:
        try:
            content = body(case, self.config, constraint)
        except UserError as error:
            return Reply(Outcome.FAILED, reason=str(error))
        sent = await sender.send(
            "POST", self.config.route, lambda: content, lambda reply: read(reply, case, self.config, constraint)
        )
        if (answer := sent.value) is None:
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
