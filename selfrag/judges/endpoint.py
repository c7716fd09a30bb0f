"""`EndpointExecutor`: requests of codecs on any OpenAI-compatible server, with its adapters or with prompts alone.

Labels and sentences are less exact than on an engine. `executor_at` drives a `vllm serve` by token ids instead, where
the tokenizer of the model is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import EngineError, UserError
from selfrag.common.reading import user_path
from selfrag.engines.client import (
    REFUSED,
    Adherence,
    Client,
    Negotiation,
    ServerReply,
    ServerTraits,
    json_of,
)
from selfrag.engines.client_thread import ClientThread, run_together
from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.engines.server_config import ServerConfig
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
from selfrag.judges.reasoning import separate, without_reasoning
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
    # how it goes on with a reply that has begun
    continuation: Continuation = Continuation.AUTO
    # most alternatives that the endpoint returns a token; 0 if it returns none
    top_logprobs: int = 20

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
_BAD_REQUEST = frozenset({400, 422})
REASONING_TOKENS = 2048
"""Tokens beside those of its text that a reply of a model which reasons may have."""

_PROBE = ModelRequest(
    JudgeInput(()),
    ChatPrompt((Message("user", "Count from one to ten, in words."),)),
    max_tokens=8,
    prefill="one, two, three, four,",
)


class EndpointExecutor(Executor):
    """An `Executor` on a server, which is asked beside the engine of a decoder.

    All requests share one client, with one pace and one pool of connections. How the server is held to constraints is
    found out by the first call that has one, and how it goes on with a reply by `find_continuation`.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self._constraints = Negotiation()
        if config.constraint_mode is not ConstraintMode.AUTO:
            self._constraints.mode = config.constraint_mode
        self._continuations = Negotiation()
        if config.continuation is not Continuation.AUTO:
            self._continuations.mode = config.continuation
        self._client = ClientThread(
            partial(_EndpointClient, config, self._constraints, self._continuations)
        )

    @property
    def constraint_mode(self) -> ConstraintMode:
        """Return how constraints are sent; `AUTO` until a request with one was answered."""
        return ConstraintMode(self._constraints.mode or ConstraintMode.AUTO)

    @property
    def continuation(self) -> Continuation:
        """Return how replies are continued; `AUTO` until that was found out."""
        return Continuation(self._continuations.mode or Continuation.AUTO)

    @property
    def continues(self) -> bool:  # type: ignore[override]  # found out when it is first asked for
        """Return whether the server goes on with a reply that has begun."""
        self.find_continuation()
        return self.continuation is not Continuation.NONE

    def find_continuation(self) -> None:
        """Find out how the server goes on with a reply, if that is not known, by a small request.

        Raises:
            EngineError: there is no such server, or it does not know the model.
        """
        if self.continuation is not Continuation.AUTO:
            return
        result = self._client.call(_EndpointClient.find_continuation)
        if isinstance(result, Failed):
            raise EngineError(result.reason)

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

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _serve(self, requests: Sequence[ModelRequest]) -> list[ExternalResult | Failed]:
        completions = self._client.call(lambda client: client.complete_all(requests))
        results: list[ExternalResult | Failed] = []
        for request, completion in zip(requests, completions, strict=True):
            if isinstance(completion, Failed):
                results.append(completion)
                continue
            calls = len(request.slots) + (request.max_tokens > 0)
            usage = Usage(calls, *_token_counts(completion))
            results.append(ExternalResult(completion, usage))
        return results


class _EndpointClient(Client):
    """The calls of requests."""

    def __init__(
        self,
        config: EndpointConfig,
        constraints: Negotiation,
        continuations: Negotiation,
    ) -> None:
        super().__init__(config, HINT, ServerTraits(optional=_OPTIONAL))
        self._settings = config
        self._constraints, self._continuations = constraints, continuations
        # what a reply may have beside the tokens of its text; 0 until reasoning has used up a budget
        self._reasoning_tokens = 0

    async def complete_all(
        self, requests: Sequence[ModelRequest]
    ) -> list[Completion | Failed]:
        """Serve requests side by side."""
        return await run_together([self._complete(request) for request in requests])

    async def _complete(self, request: ModelRequest) -> Completion | Failed:
        """Serve a request: its slots, each a call, and its text."""
        most = self._settings.top_logprobs
        calls = []
        for slot in request.slots:
            label = partial(label_request, slot, request, most)
            calls.append(self._call(label, slot.prefill))
        writes = request.max_tokens > 0
        if writes:
            writing = replace(request, top_logprobs=min(request.top_logprobs, most))
            calls.append(self._call(lambda _: writing, request.prefill))
        results = await run_together(calls)
        served = [result for result in results if isinstance(result, Completion)]
        failures = [result for result in results if isinstance(result, Failed)]
        written: Completion | Failed = Completion()
        if writes:
            written = results[-1]
        if isinstance(written, Failed):
            return written
        if failures and not served:
            return failures[-1]
        if not writes:
            reasons = [result.withheld for result in served if result.withheld]
            written = Completion(withheld=next(iter(reasons), ""))
        scores: list[tuple[float, ...] | None] = []
        for slot, result in zip(request.slots, results, strict=False):
            if isinstance(result, Completion):
                scores.append(slot_logprobs(slot, result))
            else:
                scores.append(None)
        prompt_tokens = sum(result.prompt_tokens for result in served)
        cached_tokens = sum(result.cached_tokens for result in served)
        generated_tokens = sum(result.generated_tokens for result in served)
        return replace(
            written,
            scores=tuple(scores),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            generated_tokens=generated_tokens,
        )

    async def find_continuation(self) -> Completion | Failed:
        """Return the reply to a small request under the first continuation that the server has."""
        refused_chats = 0

        async def attempt(
            continuation: Continuation,
        ) -> tuple[Completion | Failed, Adherence]:
            nonlocal refused_chats
            if continuation is Continuation.COMPLETIONS and refused_chats < 2:
                # A chat model needs its chat template.
                return Failed("chats are served"), Adherence.IGNORED
            result, status = await self._ask(
                _PROBE, ConstraintMode.NONE, _PROBE.prefill, continuation
            )
            refused_chats += status in _NO_ROUTE
            return result, _continued(result, status, continuation)

        return await self.negotiate(self._continuations, _CONTINUATIONS, attempt)

    async def _call(
        self, make: Callable[[ConstraintMode], ModelRequest], beginning: str
    ) -> Completion | Failed:
        """Return the reply to the request that `make` gives for a mode; its text goes on from `beginning`."""

        async def attempt(
            mode: ConstraintMode,
        ) -> tuple[Completion | Failed, Adherence]:
            request = make(mode)
            continuation = self._continuation(mode)
            result, status = await self._ask(request, mode, beginning, continuation)
            return result, _adherence(result, status, request.constraint, mode)

        if make(ConstraintMode.STRUCTURED).constraint is None:
            known = ConstraintMode(self._constraints.mode or ConstraintMode.AUTO)
            result, _ = await attempt(known)
            return result
        return await self.negotiate(self._constraints, _CONSTRAINT_MODES, attempt)

    def _continuation(self, mode: ConstraintMode) -> Continuation:
        """Return how a reply is continued: a server with vLLM's constraints has its continuation, too."""
        if self._continuations.mode is not None:
            return Continuation(self._continuations.mode)
        if mode is ConstraintMode.STRUCTURED:
            return Continuation.FIELDS
        return Continuation.NONE

    async def _ask(
        self,
        request: ModelRequest,
        mode: ConstraintMode,
        beginning: str,
        continuation: Continuation,
    ) -> tuple[Completion | Failed, int]:
        """Return what came back, and the status; 0 for none."""
        config = self._settings
        content = body(request, config.model, mode, beginning, continuation)
        route = route_of(request, continuation)
        allowance = self._reasoning_tokens
        content["max_tokens"] += allowance

        async def sent() -> ServerReply[Completion]:
            return await self.send(
                "POST",
                f"{config.base}{route}",
                lambda: content,
                lambda received: _read(received, route, request),
            )

        reply = await sent()
        if reply.status in _BAD_REQUEST and (allowance or content.get("logprobs")):
            # Not every server names what it refuses.
            content["max_tokens"] -= allowance
            content.pop("logprobs", None)
            content.pop("top_logprobs", None)
            reply = await sent()
        elif reply.value and _is_cut_reasoning(reply.value) and not allowance:
            content["max_tokens"] += REASONING_TOKENS
            longer = await sent()
            if longer.value is not None:
                self._reasoning_tokens = REASONING_TOKENS
                reply = longer
        if reply.value is None:
            return Failed(f"{config.url}: {reply.reason}"), reply.status
        return _counted(reply.value, content), reply.status


def _read(content: bytes, route: str, request: ModelRequest) -> Completion:
    """Return the completion in a reply to a request."""
    completion = parse(content, route)
    if request.keeps_reasoning:
        return completion
    return without_reasoning(completion)


def _is_cut_reasoning(completion: Completion) -> bool:
    """Return whether the token budget ended a reply before its reasoning did."""
    written = separate(completion.text)
    thought = completion.reasoning or written.reasoning
    return bool(thought) and completion.finish == "length" and not written.text.strip()


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
    probe = ClientThread(partial(Client, config, HINT))
    try:
        is_vllm = probe.call(partial(_serves_with_vllm, config))
    finally:
        probe.close()
    if not is_vllm:
        executor = EndpointExecutor(config)
        executor.find_continuation()  # now: it must not hold up somebody's first question
        return executor
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


async def _serves_with_vllm(config: EndpointConfig, client: Client) -> bool:
    """Return whether a server says that it is vLLM and has the model; servers without a list of models are not."""
    reply = await client.send("GET", f"{config.base}/models", lambda: None, json_of)
    match reply.value:
        case {"data": [*cards]}:
            pass
        case _:
            return False
    for card in cards:
        match card:
            case {"id": config.model, "owned_by": "vllm"}:
                return True
    return False
