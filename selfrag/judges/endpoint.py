"""`EndpointExecutor`: requests of codecs on any OpenAI-compatible server, with its adapters or with prompts alone.

Labels and sentences are less exact than on an engine. `executor_at` drives a `vllm serve` by token ids instead, where
the tokenizer of the model is at hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import EngineError, UserError
from selfrag.common.reading import user_path
from selfrag.engines.client import (
    REFUSED,
    Adherence,
    Client,
    ServerConfig,
    ServerTraits,
    json_of,
)
from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.openai_wire import (
    ConstraintMode,
    Continuation,
    body,
    follows,
    label_request,
    parse,
    route_of,
    slot_logprobs,
)
from selfrag.judges.text_pieces import TextPieces
from selfrag.judges.wire import ChatPrompt, Completion, Executor, ModelRequest
from selfrag.loading import load_tokenizer
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.requests import (
    Constraint,
    External,
    ExternalResult,
    Failed,
    Steps,
    Usage,
    failure_of,
)


@dataclass(frozen=True, slots=True)
class EndpointConfig(ServerConfig):
    """How to reach an endpoint; its `url` is such as `http://127.0.0.1:8000/v1`, without a path `/v1` is added."""

    model: str  # its name there; a request's adapter takes its place, as `vllm serve --lora-modules` has it
    constraint_mode: ConstraintMode = ConstraintMode.AUTO  # how constraints are sent
    continuation: Continuation = (
        Continuation.AUTO
    )  # how it goes on with a reply that has begun
    top_logprobs: int = (
        20  # most alternatives that the endpoint returns a token; 0 if it returns none
    )

    def __post_init__(self) -> None:
        ServerConfig.__post_init__(self)
        if not self.model.strip():
            raise EngineError(
                "the name of the model is empty; give the name that the endpoint knows"
            )
        check_int("top_logprobs", self.top_logprobs, 0, 20)
        check_choice("constraint_mode", self.constraint_mode, tuple(ConstraintMode))
        check_choice("continuation", self.continuation, tuple(Continuation))
        object.__setattr__(
            self, "constraint_mode", ConstraintMode(self.constraint_mode)
        )
        object.__setattr__(self, "continuation", Continuation(self.continuation))


HINT = "start it, or correct the URL"

_CONSTRAINT_MODES = (
    ConstraintMode.STRUCTURED,
    ConstraintMode.SCHEMA,
    ConstraintMode.NONE,
)
_CONTINUATIONS = (
    Continuation.FIELDS,
    Continuation.LAST_TURN,
    Continuation.COMPLETIONS,
    Continuation.NONE,
)

_OPTIONAL = frozenset(
    {"logprobs", "top_logprobs", "temperature", "chat_template_kwargs"}
)
"""Fields that some hosted models refuse. Without log-probabilities the label that was written is all that is known."""

_PIECES = TextPieces()
_NO_ROUTE = frozenset({404, 405, 501})

_PROBE = ModelRequest(
    JudgeInput(()),
    ChatPrompt((Message("user", "Count from one to ten, in words."),)),
    max_tokens=8,
    prefill="one, two, three, four,",
)


class EndpointExecutor(Executor):
    """An `Executor` on a server, which is asked beside the engine of a decoder.

    How the server is held to constraints is found out by the first call that has one, and how it goes on with a reply
    by a request of its own, when `continues` is first asked for.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self._traits = ServerTraits(optional=_OPTIONAL)
        if config.constraint_mode is not ConstraintMode.AUTO:
            self._traits.mode = config.constraint_mode
        self._continuing = ServerTraits(optional=_OPTIONAL)
        if config.continuation is not Continuation.AUTO:
            self._continuing.mode = config.continuation

    @property
    def constraint_mode(self) -> ConstraintMode:
        """Return how constraints are sent; `AUTO` until a request with one was answered."""
        return ConstraintMode(self._traits.mode or ConstraintMode.AUTO)

    @property
    def continuation(self) -> Continuation:
        """Return how replies are continued; `AUTO` until `continues` was asked for."""
        return Continuation(self._continuing.mode or Continuation.AUTO)

    @property
    def continues(self) -> bool:  # type: ignore[override]  # found out when it is first asked for
        """Return whether the server goes on with a reply that has begun.

        Raises:
            EngineError: there is no such server, or it does not know the model.
        """
        if self.continuation is Continuation.AUTO:
            with start_blocking_portal() as portal:
                result = portal.call(self._probe)
            if isinstance(result, Failed):
                raise EngineError(result.reason)
        return self.continuation is not Continuation.NONE

    def steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Completion | Failed]]:
        """Return the results of one batch. Requests and slots are sent side by side."""
        results = yield [
            External(self._serve, request, self.config.url) for request in requests
        ]
        completions: list[Completion | Failed] = []
        for result in results:
            if isinstance(result, ExternalResult):
                completions.append(result.value)
            else:
                completions.append(Failed(failure_of(result)))
        return completions

    def _serve(self, requests: Sequence[ModelRequest]) -> list[ExternalResult | Failed]:
        # The event loop has a thread of its own, since a notebook's is running already.
        with start_blocking_portal() as portal:
            completions = portal.call(self._run, requests)
        results: list[ExternalResult | Failed] = []
        for request, completion in zip(requests, completions, strict=True):
            if isinstance(completion, Failed):
                results.append(completion)
                continue
            sent = len(request.slots) + (request.max_tokens > 0)
            results.append(
                ExternalResult(completion, Usage(sent, *_token_counts(completion)))
            )
        return results

    async def _run(self, requests: Sequence[ModelRequest]) -> list[Completion | Failed]:
        async with Client(self.config, HINT, self._traits) as client:
            connection = _Connection(self, client)
            return list(
                await asyncio.gather(
                    *(connection.request(request) for request in requests)
                )
            )

    async def _probe(self) -> Completion | Failed:
        async with Client(self.config, HINT, self._continuing) as client:
            connection = _Connection(self, client)
            refused_chats = 0

            async def attempt(
                continuation: Continuation,
            ) -> tuple[Completion | Failed, Adherence]:
                nonlocal refused_chats
                if continuation is Continuation.COMPLETIONS and refused_chats < 2:
                    return Failed(
                        "chats are served"
                    ), Adherence.IGNORED  # a chat model needs its chat template
                result, status = await connection.send(
                    _PROBE, ConstraintMode.NONE, _PROBE.prefill, continuation
                )
                refused_chats += status in _NO_ROUTE
                return result, _continued(result, status, continuation)

            return await client.negotiate(_CONTINUATIONS, attempt)


class _Connection:
    """The calls of one batch."""

    def __init__(self, owner: EndpointExecutor, client: Client) -> None:
        self._owner, self._client = owner, client
        self._places = asyncio.Semaphore(owner.config.max_concurrency)

    async def request(self, request: ModelRequest) -> Completion | Failed:
        """Serve a request: its slots, each a call, and its text."""
        most = self._owner.config.top_logprobs
        calls = [
            self._call(partial(label_request, slot, request, most), slot.prefill)
            for slot in request.slots
        ]
        writes = request.max_tokens > 0
        if writes:
            writing = replace(request, top_logprobs=min(request.top_logprobs, most))
            calls.append(self._call(lambda _: writing, request.prefill))
        results = await asyncio.gather(*calls)
        served = [result for result in results if isinstance(result, Completion)]
        failures = [result for result in results if isinstance(result, Failed)]
        written = results[-1] if writes else Completion()
        if isinstance(written, Failed):
            return written
        if failures and not served:
            return failures[-1]
        scores: list[tuple[float, ...] | None] = []
        for slot, result in zip(request.slots, results, strict=False):
            scores.append(
                slot_logprobs(slot, result) if isinstance(result, Completion) else None
            )
        totals = [
            sum(counts) for counts in zip(*map(_token_counts, served), strict=True)
        ] or [0, 0, 0]
        prompt, cached, generated = totals
        return replace(
            written,
            scores=tuple(scores),
            prompt_tokens=prompt,
            cached_tokens=cached,
            generated_tokens=generated,
        )

    async def _call(
        self, make: Callable[[ConstraintMode], ModelRequest], begun: str
    ) -> Completion | Failed:
        async def attempt(
            mode: ConstraintMode,
        ) -> tuple[Completion | Failed, Adherence]:
            request = make(mode)
            result, status = await self.send(
                request, mode, begun, self._continuation(mode)
            )
            return result, _adherence(result, status, request.constraint, mode)

        if make(ConstraintMode.STRUCTURED).constraint is None:
            result, _ = await attempt(self._owner.constraint_mode)
            return result
        return await self._client.negotiate(_CONSTRAINT_MODES, attempt)

    def _continuation(self, mode: ConstraintMode) -> Continuation:
        """Return how a reply is continued: a server with vLLM's constraints has its continuation, too."""
        known = self._owner.continuation
        if known is Continuation.AUTO:
            return (
                Continuation.FIELDS
                if mode is ConstraintMode.STRUCTURED
                else Continuation.NONE
            )
        return known

    async def send(
        self,
        request: ModelRequest,
        mode: ConstraintMode,
        begun: str,
        continuation: Continuation,
    ) -> tuple[Completion | Failed, int]:
        """Return what came back, and the status; 0 for none."""
        config = self._owner.config
        content = body(request, config.model, mode, begun, continuation)
        route = route_of(request, continuation)
        async with self._places:
            reply = await self._client.send(
                "POST",
                f"{config.base}{route}",
                lambda: content,
                lambda received: parse(received, route),
            )
        if reply.value is None:
            return Failed(f"{config.url}: {reply.reason}"), reply.status
        return _counted(reply.value, content), reply.status


def _counted(completion: Completion, content: Mapping[str, Any]) -> Completion:
    """Return a completion with numbers of tokens; where the server reports none, they are estimated."""
    prompt, generated = completion.prompt_tokens, completion.generated_tokens
    if not prompt:
        texts = (
            [content["prompt"]]
            if "prompt" in content
            else [turn["content"] for turn in content["messages"]]
        )
        prompt = sum(len(_PIECES.encode(text)) for text in texts)
    if not generated:
        generated = len(completion.tokens or _PIECES.encode(completion.text))
        if completion.finish == "length":
            generated = content["max_tokens"]
    return replace(completion, prompt_tokens=prompt, generated_tokens=generated)


def _token_counts(completion: Completion) -> tuple[int, int, int]:
    return (
        completion.prompt_tokens,
        completion.cached_tokens,
        completion.generated_tokens,
    )


def _adherence(
    result: Completion | Failed,
    status: int,
    constraint: Constraint | None,
    mode: ConstraintMode,
) -> Adherence:
    if isinstance(result, Failed):
        return Adherence.REFUSED if status in REFUSED else Adherence.UNKNOWN
    return Adherence.OBEYED if follows(result, constraint, mode) else Adherence.IGNORED


def _continued(
    result: Completion | Failed, status: int, continuation: Continuation
) -> Adherence:
    """Return whether a reply to the probe goes on from where it began."""
    if isinstance(result, Failed):
        return Adherence.REFUSED if status in REFUSED else Adherence.UNKNOWN
    goes_on = result.text.lstrip().casefold().startswith("five")
    return (
        Adherence.OBEYED
        if goes_on or continuation is Continuation.NONE
        else Adherence.IGNORED
    )


def executor_at(
    model: str, url: str, *, tokenizer: str | None = None, **settings: Any
) -> Executor:
    """Return what runs requests on a model behind an address, as exactly as its server allows.

    A `vllm serve` is driven by token ids, as an engine of this process is, if the tokenizer of the model can be had.
    Any other server gets text.

    Args:
        model: its name there.
        url: such as `http://127.0.0.1:8000/v1`.
        tokenizer: directory or hub name of the tokenizer; by default `model`, if that is one.
        settings: further fields of `EndpointConfig`, such as `api_key_env`.

    Raises:
        EngineError: no such server, or it refuses the key.
    """
    known = [item.name for item in fields(EndpointConfig)]
    if unknown := sorted(set(settings) - set(known)):
        raise UserError(
            f"a model at an address has no option {unknown[0]!r}; known: {', '.join(known)}, tokenizer"
        )
    config = EndpointConfig(url, model, **settings)
    with start_blocking_portal() as portal:
        is_vllm = portal.call(_serves_with_vllm, config)
    if not is_vllm:
        return EndpointExecutor(config)
    source = tokenizer or model
    if user_path(source).is_dir():
        source = str(user_path(source))
    if tokenizer is not None or Path(source).is_dir() or source.count("/") == 1:
        try:
            return _by_token_ids(config, source)
        except (UserError, EngineError):
            if tokenizer is not None:
                raise
    if config.continuation is Continuation.AUTO:
        config = replace(config, continuation=Continuation.VLLM)
    return EndpointExecutor(config)


def _by_token_ids(config: EndpointConfig, source: str) -> EngineExecutor:
    loaded = load_tokenizer(Path(source))
    shared = {
        item.name: getattr(config, item.name)
        for item in fields(ServerConfig)
        if item.name != "url"
    }
    address = config.base.removesuffix("/v1")
    return EngineExecutor(
        HTTPEngine.load(HTTPConfig(address, config.model, source, **shared)), loaded
    )


async def _serves_with_vllm(config: EndpointConfig) -> bool:
    """Return whether a server says that it is vLLM and has the model; servers without a list of models are not."""
    async with Client(config, HINT) as client:
        reply = await client.send("GET", f"{config.base}/models", lambda: None, json_of)
    match reply.value:
        case {"data": [*cards]}:
            pass
        case _:
            return False
    mine = [
        card
        for card in cards
        if isinstance(card, dict) and card.get("id") == config.model
    ]
    return any(card.get("owned_by") == "vllm" for card in mine)
