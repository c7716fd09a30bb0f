"""`HTTPEngine`: any number of GPUs behind one `vllm serve`, driven over HTTP with retries."""

from __future__ import annotations

import math
import queue
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Any, NotRequired, TypeVar

import numpy as np
from typing_extensions import TypedDict

from selfrag.common.checks import check_int
from selfrag.common.errors import EngineError, UserError, count_of
from selfrag.common.pretrained import load
from selfrag.common.reading import read_json, user_path
from selfrag.common.validation import validate
from selfrag.engines.base import BaseEngine, EngineLimits, Ticket
from selfrag.engines.client import (
    NO_LOGPROB,
    BadReplyError,
    Client,
    ServerReply,
    as_logprob,
    json_of,
    token_count,
)
from selfrag.engines.client_thread import LoopThread
from selfrag.engines.server_config import ServerConfig
from selfrag.engines.vllm import finish
from selfrag.reflection.requests import Failed, Generate, Generated

ROUTE = "/v1/completions"


def request_body(
    request: Generate, model: str, request_id: str, max_model_len: int
) -> dict[str, Any]:
    """Return the JSON of a greedy request within the limits: to a model or adapter, under an id that was never used.

    vLLM cuts each position at `logprobs` entries beside the sampled one, so one id more than watched is asked for.
    """
    fields: dict[str, Any] = {
        "request_id": request_id,
        "model": model,
        "stream": False,
        "prompt": list(request.prompt_ids),
        "temperature": 0.0,
        "max_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "logprobs": 0,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    watch = request.watch_ids
    if watch:
        spare = min(set(range(len(watch) + 1)).difference(watch))
        fields |= {"logprobs": len(watch) + 1, "logprob_token_ids": [*watch, spare]}
    if request.stop_ids:
        fields["stop_token_ids"] = list(request.stop_ids)
    if request.allowed_ids is not None:
        fields["allowed_token_ids"] = list(request.allowed_ids)
    if request.constraint is not None:
        fields["structured_outputs"] = request.constraint.as_structured_outputs()
    return fields


def parse_reply(content: bytes, request: Generate) -> Generated:
    """Return our result for a reply to `request`; raise a `BadReplyError` where anything is missing."""
    reply = json_of(content)
    match reply:
        case {
            "choices": [
                {
                    "token_ids": [*ids],
                    "finish_reason": str(reason),
                    "logprobs": {
                        "tokens": [*names],
                        "token_logprobs": [*sampled],
                        "top_logprobs": [*tops],
                    },
                } as choice
            ]
        }:
            pass
        case _:
            raise BadReplyError(
                "the reply lacks choices[0] with token_ids, logprobs and finish_reason"
            )
    if reason not in ("stop", "length"):
        raise BadReplyError(f"the server ended the request early ({reason})")
    if (
        not len(sampled) == len(tops) == len(ids)
        or not 0 < len(ids) <= request.max_tokens
    ):
        raise BadReplyError(
            f"{count_of(len(ids), 'tokens')} with {len(sampled)} log-probabilities for max_tokens={request.max_tokens}"
        )
    if not all(type(i) is int and 0 <= i < _MOST_ID for i in ids) or names != [
        _name(i) for i in ids
    ]:
        raise BadReplyError("token_ids holds something that is not a token id")
    masked = request.constraint is not None
    watched = [[_watched(top, i, masked) for i in request.watch_ids] for top in tops]
    return Generated(
        token_ids=tuple(ids),
        token_logprobs=tuple(map(_value, sampled, ids)),
        watched=np.array(watched, np.float32),
        finish=finish(request, ids, reason, eos=choice.get("stop_reason") is None),
        cached_tokens=_cached(reply),
    )


def _name(token: int) -> str:
    return f"token_id:{token}"


def _watched(top: Any, token: int, masked: bool) -> float:
    value = top.get(_name(token)) if isinstance(top, dict) else None
    # a grammar gives what it forbids no probability
    if masked and as_logprob(value) == NO_LOGPROB:
        return -math.inf
    return _value(value, token)


def _value(value: Any, token: int) -> float:
    logprob = as_logprob(value)
    if logprob is None or logprob <= NO_LOGPROB:
        raise BadReplyError(
            f"no log-probability of token id {token}: {str(value)[:80]}"
        )
    return logprob


def _cached(reply: Mapping[str, Any]) -> int:
    """Return the number of cached prompt tokens; only a server started with `--enable-prompt-tokens-details` tells."""
    match reply:
        case {"usage": {"prompt_tokens_details": details}}:
            return token_count(details, "cached_tokens")
        case _:
            return 0


T = TypeVar("T")
_MOST_ID = 1 << 31

MODELS = "/v1/models"


@dataclass(frozen=True, slots=True)
class HTTPConfig(ServerConfig):
    """Address, timeouts, retries and model of a `vllm serve`."""

    # served name of the base model; may be left out where the server has one only
    model: str | None = None
    # checkpoint directory or hub name, from which the size of the vocabulary is read
    model_dir: str | None = None
    vocab_size: int | None = None  # the same as a number; wins over `model_dir`
    # `--max-logprobs` of the server, which bounds the watched ids of a request to one less
    max_logprobs: int = 20
    # let Python code of the tokenizer in `model_dir` run, with all your rights. Read it first.
    trust_remote_code: bool = False
    _: KW_ONLY
    api_key_env: str = "VLLM_API_KEY"
    max_concurrency: int = 64
    connect_timeout: float = 5.0

    def __post_init__(self) -> None:
        ServerConfig.__post_init__(self)
        check_int("max_logprobs", self.max_logprobs)


class _Model(TypedDict):
    id: str
    parent: NotRequired[str | None]
    root: NotRequired[str | None]
    max_model_len: NotRequired[int | None]


class _Models(TypedDict):
    data: list[_Model]


def served(listing: Mapping[str, Any], config: HTTPConfig) -> tuple[str, EngineLimits]:
    """Name of the base model and limits, from the reply of `/v1/models`."""
    try:
        cards = validate(_Models, listing, others="ignore")["data"]
    except UserError as error:
        raise EngineError(
            f"{config.url}{MODELS} lists no models: {error}; is it a vllm serve?"
        ) from error
    bases = {card["id"]: card for card in cards if not card.get("parent")}
    roots = {card.get("root") or name for name, card in bases.items()}
    if config.model is None and len(roots) == 1:
        name = next(iter(bases))  # further names with the same root are aliases
    elif config.model in bases:
        name = config.model
    else:
        raise EngineError(
            f"{config.url} does not serve model {config.model}; it serves: {', '.join(bases) or 'none'}"
        )
    length = token_count(bases[name], "max_model_len")
    if not length:
        raise EngineError(
            f"{config.url} does not tell max_model_len of {name}; is it a vllm serve?"
        )
    parents = {name, bases[name].get("root")} - {None}
    adapters = frozenset(card["id"] for card in cards if card.get("parent") in parents)
    return name, EngineLimits(
        length, _vocab_size(config, name), config.max_logprobs - 1, adapters
    )


def _vocab_size(config: HTTPConfig, served_name: str) -> int:
    if config.vocab_size is not None:
        return config.vocab_size
    if config.model_dir is None:
        raise EngineError(
            f"size of the vocabulary of {served_name} unknown; pass vocab_size= or model_dir="
        )
    file = user_path(config.model_dir) / "config.json"
    if file.is_file():
        values = read_json(file)
    else:
        values = load(
            "AutoConfig", config.model_dir, trust_remote_code=config.trust_remote_code
        ).to_dict()
    size = None
    if isinstance(values, dict):
        text = values.get("text_config")
        size = values.get("vocab_size") or (
            text.get("vocab_size") if isinstance(text, dict) else None
        )
    if not isinstance(size, int):
        raise EngineError(
            f"{config.model_dir} does not tell its vocab_size; pass vocab_size="
        )
    return size


HINT = "start it with `vllm serve MODEL` or correct the URL"

PATIENCE = 30.0
"""Seconds for a first answer, at most."""


class _Server(Client):
    """A `vllm serve`."""

    model: str  # served name of the base model; known after `discover`
    limits: EngineLimits  # of the server; known after `discover`

    def __init__(self, config: HTTPConfig) -> None:
        super().__init__(config, HINT)
        self._settings = config

    async def discover(self) -> None:
        """Ask the server what it serves, and whether it gives what this engine needs."""
        url = self._config.url
        listing = await self._probe("GET", MODELS, None, _object)
        if listing.value is None:
            raise EngineError(
                f"{url}{MODELS} answered {listing.status}; is it a vllm serve?"
            )
        self.model, self.limits = served(listing.value, self._settings)
        trial = Generate((1,), 1, watch_ids=(0, 1))
        body = request_body(trial, self.model, "trial", 2)
        reply = await self._probe(
            "POST", ROUTE, body, lambda content: parse_reply(content, trial)
        )
        if reply.reason:
            raise EngineError(
                f"{url}{ROUTE} gives no log-probabilities of token ids ({reply.reason});"
                " serve the model with vLLM 0.32 or later"
            )

    async def _probe(
        self, method: str, route: str, content: Any, parse: Callable[[bytes], T]
    ) -> ServerReply[T]:
        seconds = min(self._config.read_timeout, PATIENCE)
        reply = await self.send(
            method, self._address(route), lambda: content, parse, seconds
        )
        if not reply.status:
            raise EngineError(
                f"{self._address(route)}: {reply.reason}; is it overloaded?"
            )
        return reply

    async def generate(self, request: Generate, name: str) -> Generated | Failed:
        """Serve one request when a slot is free; the server ends it where its connection does.

        Every time it is sent, its name gets a number of its own. An `EngineError` tells that the server cannot be
        reached any more, or refuses the API key.
        """
        model = request.adapter or self.model
        attempts = count(1)
        reply = await self.send(
            "POST",
            self._address(ROUTE),
            lambda: request_body(
                request, model, f"{name}-{next(attempts)}", self.limits.max_model_len
            ),
            lambda content: parse_reply(content, request),
        )
        return reply.value or Failed(f"{self._config.url}: {reply.reason}")

    def _address(self, route: str) -> str:
        return f"{self._config.url.rstrip('/')}{route}"


def _object(content: bytes) -> dict[str, Any]:
    value = json_of(content)
    if not isinstance(value, dict):
        raise BadReplyError("no JSON object")
    return value


WAIT = 0.01
"""Seconds that `step` waits for a first result; short, so that new requests of other threads are noticed."""


class HTTPEngine(BaseEngine):
    """An `Engine` on a remote `vllm serve`. Make one with `HTTPEngine.load`.

    A request that fails comes back as `Failed`; a server that is gone raises `EngineError` from `step` and drops what
    was under way, after which the engine may be used again, should the server come back.
    """

    def __init__(self, config: HTTPConfig) -> None:
        super().__init__()
        self._client = _Server(config)
        self._results: queue.SimpleQueue[tuple[Ticket, Future[Generated | Failed]]] = (
            queue.SimpleQueue()
        )
        self._live: dict[Ticket, Future[Generated | Failed]] = {}
        self._session = uuid.uuid4().hex
        self._thread = LoopThread()

    @classmethod
    def load(cls, config: HTTPConfig) -> HTTPEngine:
        """Connect to a server and ask what it serves.

        Raises:
            EngineError: no such server, model or key; names the URL and what to do.
        """
        self = cls(config)
        try:
            self._thread.submit(self._client.discover()).result()
            self.limits = self._client.limits
        except BaseException:
            self.close()
            raise
        return self

    def _queue(self, ticket: Ticket, request: Generate) -> None:
        """Send it as soon as a slot is free."""
        self._live[ticket] = self._thread.submit(
            self._client.generate(request, f"{self._session}-{ticket}")
        )
        self._live[ticket].add_done_callback(
            lambda ended: self._results.put((ticket, ended))
        )

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """Return what arrived; waits a hundredth of a second for a first answer while any is due."""
        self._check_open()
        done = self._refusals()
        while self._live:
            try:
                ticket, ended = self._results.get(block=not done, timeout=WAIT)
            except queue.Empty:
                break
            if self._live.pop(ticket, None) is None:  # aborted
                continue
            if (error := ended.exception()) is not None:
                self.abort(list(self._live))
                raise error
            done.append((ticket, ended.result()))
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests here and at the server."""
        gone = set(tickets)
        self._refused = self._refusals(gone)
        tasks = [self._live.pop(ticket) for ticket in sorted(gone & set(self._live))]
        if tasks:
            self._thread.loop.call_soon_threadsafe(
                lambda: [task.cancel() for task in tasks]
            )

    def close(self) -> None:
        """Abort what is under way, close the connections and stop the thread."""
        if self._gone is not None:
            return
        self._gone = "the HTTP engine is closed; load it again"
        self._live.clear()
        self._thread.close(self._client)
