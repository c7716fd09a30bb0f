"""`HTTPEngine`: any number of GPUs behind one `vllm serve`, driven over HTTP with retries."""

from __future__ import annotations

import asyncio
import math
import queue
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
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


def _sampling(request: Generate, max_model_len: int) -> dict[str, Any]:
    """Return the fields of a greedy request that both routes have.

    vLLM cuts each position at `logprobs` entries beside the sampled one, so one id more than watched is asked for.
    """
    fields: dict[str, Any] = {
        "temperature": 0.0,
        "max_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "logprobs": 0,
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


def _tokens_body(request: Generate, max_model_len: int) -> dict[str, Any]:
    sampling = _sampling(request, max_model_len) | {
        "flat_logprobs": True,
        "detokenize": False,
    }
    return {"token_ids": list(request.prompt_ids), "sampling_params": sampling}


def _completions_body(request: Generate, max_model_len: int) -> dict[str, Any]:
    text = {"add_special_tokens": False, "skip_special_tokens": False}
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    return {
        "prompt": list(request.prompt_ids),
        **_sampling(request, max_model_len),
        **text,
        **ids,
    }


def _tokens_rows(logprobs: Mapping[str, Any]) -> list[Any]:
    rows = logprobs.get("content")
    return rows if isinstance(rows, list) else []


def _completions_rows(logprobs: Mapping[str, Any]) -> list[Any]:
    rows: list[Any] = []
    match logprobs:
        case {
            "tokens": [*tokens],
            "token_logprobs": [*values],
            "top_logprobs": [*tops],
        }:
            for token, value, top in zip(tokens, values, tops, strict=False):
                row = _entry(token, value)
                if isinstance(top, dict):
                    row["top_logprobs"] = [_entry(*item) for item in top.items()]
                rows.append(row)
    return rows


def _entry(token: object, value: object) -> dict[str, Any]:
    """Return a log-probability that a completion gives under a name such as `token_id:7`."""
    name, _, number = str(token)[:30].partition(":")
    token_id = int(number) if name == "token_id" and number.isdecimal() else None
    return {"token_id": token_id, "logprob": value}


@dataclass(frozen=True, slots=True)
class Wire:
    """A route that serves requests."""

    route: str  # path below the server's address
    # of a request, where the server has this longest context
    fields: Callable[[Generate, int], dict[str, Any]]
    # of `logprobs` in a reply an entry for each position, with others
    rows: Callable[[Mapping[str, Any]], list[Any]]

    def body(
        self, request: Generate, model: str, request_id: str, max_model_len: int
    ) -> dict[str, Any]:
        """Return the JSON of a request within the limits: to a model or adapter, under an id that was never used."""
        return {
            "request_id": request_id,
            "model": model,
            "stream": False,
            **self.fields(request, max_model_len),
        }

    def parse(self, content: bytes, request: Generate) -> Generated:
        """Return our result for a reply to `request`; raise a `BadReplyError` where anything is missing."""
        reply = json_of(content)
        match reply:
            case {
                "choices": [
                    {
                        "token_ids": [*ids],
                        "finish_reason": str(reason),
                        "logprobs": dict(logprobs),
                    } as choice
                ]
            }:
                rows = self.rows(logprobs)
            case _:
                raise BadReplyError(
                    "the reply lacks choices[0] with token_ids, logprobs and finish_reason"
                )
        if reason not in ("stop", "length"):
            raise BadReplyError(f"the server ended the request early ({reason})")
        if not ids or len(ids) != len(rows) or len(ids) > request.max_tokens:
            raise BadReplyError(
                f"{count_of(len(ids), 'tokens')} with {len(rows)} log-probabilities for max_tokens={request.max_tokens}"
            )
        if not all(type(i) is int and 0 <= i < _MOST_ID for i in ids):
            raise BadReplyError("token_ids holds something that is not a token id")
        sampled = tuple(
            _value(row, token) for row, token in zip(rows, ids, strict=True)
        )
        return Generated(
            token_ids=tuple(ids),
            token_logprobs=sampled,
            watched=_watched(
                rows, request.watch_ids, masked=request.constraint is not None
            ),
            finish=finish(request, ids, reason, eos=choice.get("stop_reason") is None),
            cached_tokens=_cached(reply),
        )


def _watched(rows: Sequence[Any], watch_ids: Sequence[int], *, masked: bool) -> Any:
    matrix = np.empty((len(rows), len(watch_ids)), dtype=np.float32)
    if not watch_ids:
        return matrix
    for position, row in enumerate(rows):
        entries = row.get("top_logprobs")
        if not isinstance(entries, list):
            raise BadReplyError(f"no watched log-probabilities at position {position}")
        values = {
            e["token_id"]: e
            for e in entries
            if isinstance(e, dict) and isinstance(e.get("token_id"), int)
        }
        for column, token in enumerate(watch_ids):
            if token not in values:
                raise BadReplyError(
                    f"no log-probability of token id {token} at position {position}"
                )
            matrix[position, column] = _value(values[token], token, masked=masked)
    return matrix


def _value(entry: Any, token: int, *, masked: bool = False) -> float:
    """Return the log-probability in an entry, which must be of `token`; -inf only where tokens are masked."""
    match entry:
        case {"token_id": int(number), "logprob": value} if number == token:
            logprob = as_logprob(value)
            if masked and logprob == NO_LOGPROB:
                return -math.inf
            if logprob is not None and logprob > NO_LOGPROB:
                return logprob
            raise BadReplyError(
                f"log-probability {value} of token id {token} is no log-probability"
            )
        case _:
            raise BadReplyError(
                f"no log-probability of token id {token}: {str(entry)[:80]}"
            )


def _cached(reply: Mapping[str, Any]) -> int:
    """Return the number of cached prompt tokens; only a server started with `--enable-prompt-tokens-details` tells."""
    match reply:
        case {"usage": {"prompt_tokens_details": details}}:
            return token_count(details, "cached_tokens")
        case _:
            return 0


TOKENS = Wire("/inference/v1/generate", _tokens_body, _tokens_rows)
"""Of a server that was started with `--enable-scale-out`; it can also abort a request by its id."""
COMPLETIONS = Wire("/v1/completions", _completions_body, _completions_rows)
"""Of any `vllm serve` that knows `logprob_token_ids`."""


T = TypeVar("T")
_MOST_ID = 1 << 31

ABORT = "/inference/v1/abort_requests"
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
    wire: Wire  # the route that serves requests; known after `discover`
    limits: EngineLimits  # of the server; known after `discover`

    def __init__(self, config: HTTPConfig) -> None:
        super().__init__(config, HINT)
        self._settings = config
        self._unwanted: list[
            str
        ] = []  # names of requests that the server is to be told of

    async def discover(self) -> None:
        """Ask the server what it serves, and which route serves what this engine needs."""
        url = self._config.url
        listing = await self._probe("GET", MODELS, None, _object)
        if listing.value is None:
            raise EngineError(
                f"{url}{MODELS} answered {listing.status}; is it a vllm serve?"
            )
        self.model, self.limits = served(listing.value, self._settings)
        if (await self._probe("POST", ABORT, {"request_ids": []}, bytes)).status == 200:
            self.wire = TOKENS
            return
        trial = Generate((1,), 1, watch_ids=(0, 1))
        body = COMPLETIONS.body(trial, self.model, "trial", 2)
        reply = await self._probe(
            "POST",
            COMPLETIONS.route,
            body,
            lambda content: COMPLETIONS.parse(content, trial),
        )
        if reply.reason:
            raise EngineError(
                f"{url} has no {TOKENS.route}, and its {COMPLETIONS.route} gives no log-probabilities of token ids"
                f" ({reply.reason}); serve the model with vLLM 0.32 or later"
            )
        self.wire = COMPLETIONS

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
        """Serve one request when a slot is free. Where it is cancelled, or silence ends it, the server is told.

        Every time it is sent, its name gets a number of its own. An `EngineError` tells that the server cannot be
        reached any more, or refuses the API key.
        """
        model = request.adapter or self.model
        attempts = count(1)
        sent = ""

        def body() -> dict[str, Any]:
            nonlocal sent
            sent = f"{name}-{next(attempts)}"
            return self.wire.body(request, model, sent, self.limits.max_model_len)

        try:
            reply = await self.send(
                "POST",
                self._address(self.wire.route),
                body,
                lambda content: self.wire.parse(content, request),
            )
        except asyncio.CancelledError:
            await self._abort(sent)
            raise
        if not reply.status:
            await self._abort(sent)
        return reply.value or Failed(f"{self._config.url}: {reply.reason}")

    async def _abort(self, sent: str) -> None:
        """Ask the server to stop a request, and ignore whether it does. Completions end with their connection."""
        import httpx

        if self.wire is not TOKENS or not sent:
            return
        # The name under which the server's engine knows the request, which is what this route wants.
        self._unwanted.append(f"generate-tokens-{sent}")
        await asyncio.sleep(0)  # requests that end together are told of together
        if not self._unwanted:
            return
        body = {"request_ids": self._unwanted}
        self._unwanted = []
        # a server that has ended, or has no such route, ends the request by its own limits
        with suppress(httpx.HTTPError):
            await self._http.post(self._address(ABORT), json=body, timeout=5.0)

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
