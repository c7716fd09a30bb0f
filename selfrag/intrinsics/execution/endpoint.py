"""`EndpointExecutor`: requests of codecs on any OpenAI-compatible server, with its adapters or with prompts alone.

Works with text, so labels are less exact than on an engine (`endpoint_slots`). A `vllm serve` of one's own is better
driven by `EngineExecutor` over the http engine, which sends token ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from selfrag.engines.http import patiently
from selfrag.engines.http_wire import server_message
from selfrag.intrinsics.contract import Completion, Failed, Request
from selfrag.intrinsics.execution import endpoint_slots
from selfrag.intrinsics.execution.endpoint_config import EndpointConfig, Holding
from selfrag.intrinsics.execution.endpoint_wire import BadReplyError, Call, body, parse
from selfrag.intrinsics.execution.obeying import obeys

T = TypeVar("T")

HINT = "start it, or correct the URL"
REFUSED = (400, 404, 422, 501)
"""Statuses of a server that does not know a field."""

_JSON_BEGINS = ("", *'{["-0123456789tfn')

_DESCENT = (Holding.STRUCTURED, Holding.SCHEMA, Holding.NONE)


class EndpointExecutor:
    """An `Executor` on a server. Which way of constraining it obeys is found out once.

    Attributes:
        config: how to reach it.
        holding: how constraints are sent; AUTO until the first one was.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.holding = config.holding
        self._limit_name = "max_tokens"

    def run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        """See `Executor.run`. Requests and slots are sent side by side."""
        return _finish(lambda: self._run(requests))

    def close(self) -> None:
        """Nothing is held."""

    async def _run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        import httpx

        timeout = httpx.Timeout(self.config.read_timeout, connect=self.config.connect_timeout, pool=None)
        limits = httpx.Limits(max_connections=self.config.max_concurrency)
        async with httpx.AsyncClient(headers=self.config.headers, timeout=timeout, limits=limits) as client:
            connection = _Connection(self, client)
            return list(await asyncio.gather(*(connection.request(request) for request in requests)))


class _Connection:
    """The calls of one `run`."""

    def __init__(self, owner: EndpointExecutor, client: Any) -> None:
        self._owner, self._client = owner, client
        self._slots = asyncio.Semaphore(owner.config.max_concurrency)
        self._settling = asyncio.Lock()

    async def request(self, request: Request) -> Completion | Failed:
        most = self._owner.config.top_logprobs
        jobs = [self._call(partial(endpoint_slots.call, request, slot, most)) for slot in request.slots]
        if request.max_tokens > 0:
            text = Call(
                request.prompt,
                request.max_tokens,
                temperature=request.temperature,
                constraint=request.constraint,
                top_logprobs=min(request.top_logprobs, most),
                adapter=request.adapter,
            )
            jobs.append(self._call(lambda h: text))
        results = await asyncio.gather(*jobs)
        served = [result for result in results if isinstance(result, Completion)]
        failures = [result for result in results if isinstance(result, Failed)]
        written = results[-1] if request.max_tokens > 0 else None
        if isinstance(written, Failed) or (failures and not served):
            return failures[-1]
        scored = zip(request.slots, results, strict=False)
        return replace(
            written or Completion(),
            scores=tuple(endpoint_slots.scores(s, r) if isinstance(r, Completion) else None for s, r in scored),
            prompt_tokens=sum(result.prompt_tokens for result in served),
            cached_tokens=sum(result.cached_tokens for result in served),
            generated_tokens=sum(result.generated_tokens for result in served),
        )

    async def _call(self, make: Callable[[Holding], Call]) -> Completion | Failed:
        if self._owner.holding is Holding.AUTO and make(Holding.STRUCTURED).constraint is not None:
            async with self._settling:
                if self._owner.holding is Holding.AUTO:
                    return await self._settle(make)
        holding = self._owner.holding
        return (await self._send(make(holding), holding))[0]

    async def _settle(self, make: Callable[[Holding], Call]) -> Completion | Failed:
        """Find the strictest way that the server takes and obeys, by the first constrained call.

        A server that does not know a way refuses the call, or ignores the constraint and says nothing.
        """
        for holding in _DESCENT:
            call = make(holding)
            result, status = await self._send(call, holding)
            taken = isinstance(result, Completion)
            if holding is Holding.NONE or (not taken and status not in REFUSED):
                if taken:
                    self._owner.holding = holding
                return result
            if isinstance(result, Completion) and _held(result, call, holding):
                self._owner.holding = holding
                return result
        raise AssertionError("unreachable: the last way returns")

    async def _send(self, call: Call, holding: Holding) -> tuple[Completion | Failed, int]:
        """What came back, and the status; 0 for none."""
        import httpx

        config, owner = self._owner.config, self._owner
        content = body(call, config.model, holding)
        async with self._slots:
            for _ in range(2):
                content[owner._limit_name] = content.pop("max_tokens", call.max_tokens)
                sending = dict(content)
                try:
                    reply = await patiently(
                        lambda sending=sending: self._client.post(f"{config.base}{call.route}", json=sending),  # type: ignore[misc]
                        config,
                        HINT,
                    )
                except httpx.ReadTimeout:
                    return Failed(f"no answer from {config.url} within {config.read_timeout:g} s"), 0
                said = "" if reply.status_code == 200 else server_message(reply.content)
                if reply.status_code != 400 or "max_completion_tokens" not in said or "max_tokens" not in content:
                    break
                owner._limit_name = "max_completion_tokens"  # newer hosted models know the limit under this name only
        if reply.status_code != 200:
            return Failed(f"{config.url} answered {reply.status_code}: {said}"), reply.status_code
        try:
            return parse(reply.content, call), 200
        except BadReplyError as error:
            return Failed(f"{config.url}: {error}"), 200


def _held(completion: Completion, call: Call, holding: Holding) -> bool:
    """Whether a reply follows its constraint, as far as it was sent and the reply is whole."""
    constraint = call.constraint
    if constraint is None or (holding is Holding.SCHEMA and constraint.json_schema is None):
        return True
    if completion.finish == "length" and constraint.choice is None:
        return constraint.json_schema is None or completion.text.lstrip()[:1] in _JSON_BEGINS
    return obeys(completion.text, constraint)


def _finish(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also for a caller that has an event loop of its own (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(make())).result()
