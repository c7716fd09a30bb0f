"""`EndpointTeacher`: any OpenAI-compatible endpoint, hosted or a local `vllm serve`, as a teacher. Knows no files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from critic.cases import Case
from critic.teacher.base import Outcome, Reply
from critic.teacher.blocking import drain
from critic.teacher.config import Constraint, EndpointConfig
from critic.teacher.cost import by_bytes
from critic.teacher.prompts import fingerprint, prompt
from critic.teacher.sending import TOO_LONG, Sender, Sent
from critic.teacher.wire import Answer, body, bounded, read
from retrieval.errors import UserError

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
