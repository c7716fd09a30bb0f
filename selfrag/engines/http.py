"""`HTTPEngine`: any number of GPUs behind one `vllm serve`, driven over HTTP with retries."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from retrieval.checks import number, web_address, whole
from retrieval.pretrained import load
from retrieval.reading import read_json, user_path
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Limits, Ticket, check_process, refusal
from selfrag.engines.wire import COMPLETIONS, TOKENS, BadReplyError, Wire
from selfrag.errors import EngineError
from selfrag.untrusted import printable

ABORT = "/inference/v1/abort_requests"
MODELS = "/v1/models"


def engine_request_id(request_id: str) -> str:
    """The name under which the server's engine knows a request, which is what its abort route wants."""
    return f"generate-tokens-{request_id}"


LONGEST_MESSAGE = 300


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a `Retry-After` header asks to wait, given in seconds or as a date; 0 where it says nothing."""
    value = headers.get("Retry-After") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return seconds if 0 < seconds < float("inf") else 0.0


def server_message(content: bytes) -> str:
    """The server's own words in the body of an error, in one line. Untrusted."""
    data = _json(content)
    match data:
        case {"error": {"message": str(text)}} | {"error": str(text)} | {"detail": str(text)} | {"message": str(text)}:
            pass
        case _:
            text = content[: 4 * LONGEST_MESSAGE].decode("utf-8", "replace")
    return printable(" ".join(text[: 8 * LONGEST_MESSAGE].split()))[:LONGEST_MESSAGE] or "no reason given"


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Address, timeouts and retries of a server."""

    url: str  # such as `http://127.0.0.1:8000`
    # sent as bearer token; by default what the environment variable `api_key_env` holds, if anything
    api_key: str | None = field(default=None, repr=False, kw_only=True)
    api_key_env: str = field(default="OPENAI_API_KEY", kw_only=True)  # name of that variable
    max_concurrency: int = field(default=16, kw_only=True)  # requests at the server at once; more wait here
    connect_timeout: float = field(default=10.0, kw_only=True)  # seconds for a connection
    # seconds for a whole answer, the time in the server's queue included
    read_timeout: float = field(default=300.0, kw_only=True)
    # repetitions after a failed connection and after status 429, 502, 503 and 504
    retries: int = field(default=3, kw_only=True)
    # seconds before the first repetition; doubled for each further one
    backoff: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        web_address(self.url)
        whole("max_concurrency", self.max_concurrency)
        whole("retries", self.retries, 0)
        number("connect_timeout", self.connect_timeout, above=True)
        number("read_timeout", self.read_timeout, above=True)
        number("backoff", self.backoff)

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of every request."""
        key = self.api_key or os.environ.get(self.api_key_env)
        return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True)
class HTTPConfig(ServerConfig):
    """Address, timeouts, retries and model of a `vllm serve`."""

    model: str | None = None  # served name of the base model; may be left out where the server has one only
    # checkpoint directory or hub name, from which the size of the vocabulary is read
    model_dir: str | None = None
    vocab_size: int | None = None  # the same as a number; wins over `model_dir`
    # `--max-logprobs` of the server, which bounds the watched ids of a request to one less
    max_logprobs: int = 20
    # let Python code of the tokenizer in `model_dir` run, with all your rights. Read it first.
    trust_remote_code: bool = False
    api_key_env: str = field(default="VLLM_API_KEY", kw_only=True)
    max_concurrency: int = field(default=64, kw_only=True)
    connect_timeout: float = field(default=5.0, kw_only=True)

    def __post_init__(self) -> None:
        ServerConfig.__post_init__(self)
        whole("max_logprobs", self.max_logprobs)


def served(listing: Mapping[str, Any], config: HTTPConfig) -> tuple[str, Limits]:
    """Name of the base model and limits, from the reply of `/v1/models`.

    Raises:
        EngineError: the wanted model is not served, or the reply lacks what is needed.
    """
    cards = [card for card in listing.get("data") or () if isinstance(card, dict) and isinstance(card.get("id"), str)]
    bases = {card["id"]: card for card in cards if not card.get("parent")}
    if config.model is None and len({card.get("root") or name for name, card in bases.items()}) == 1:
        name = next(iter(bases))  # further names with the same root are aliases
    elif config.model in bases:
        name = config.model
    else:
        raise EngineError(f"{config.url} does not serve model {config.model}; it serves: {', '.join(bases) or 'none'}")
    length = bases[name].get("max_model_len")
    if not isinstance(length, int):
        raise EngineError(f"{config.url} does not tell max_model_len of {name}; is it a vllm serve?")
    parents = {name, bases[name].get("root")} - {None}
    adapters = frozenset(card["id"] for card in cards if card.get("parent") in parents)
    return name, Limits(length, _vocab_size(config, name), config.max_logprobs - 1, adapters)


def _vocab_size(config: HTTPConfig, served_name: str) -> int:
    if config.vocab_size is not None:
        return config.vocab_size
    if config.model_dir is None:
        raise EngineError(f"size of the vocabulary of {served_name} unknown; pass vocab_size= or model_dir=")
    file = user_path(config.model_dir) / "config.json"
    if file.is_file():
        values = read_json(file)
    else:
        values = load("AutoConfig", config.model_dir, trust_remote_code=config.trust_remote_code).to_dict()
    known = [values, values.get("text_config")] if isinstance(values, dict) else []
    size = next((one["vocab_size"] for one in known if isinstance(one, dict) and one.get("vocab_size")), None)
    if not isinstance(size, int):
        raise EngineError(f"{config.model_dir} does not tell its vocab_size; pass vocab_size=")
    return size


PASSING = (429, 502, 503, 504)
"""Statuses that may not come back when the same request is sent again."""

LONGEST_WAIT = 30.0
"""Seconds between two attempts, at most."""


async def patiently(send: Callable[[], Awaitable[Any]], config: ServerConfig, hint: str) -> Any:
    """Send a request, with retries for failed connections and busy servers. The request must be safe to repeat.

    Args:
        send: posts the request and returns the response.
        config: timeouts and retries.
        hint: what to do where there is no server.

    Raises:
        EngineError: no connection after all retries, or the API key is refused.
        httpx.ReadTimeout: the server took the request and did not answer in time.
    """
    import httpx

    wait = config.backoff
    for left in reversed(range(config.retries + 1)):
        pause = wait * random.uniform(0.8, 1.2)  # noqa: S311 - spreads repetitions, hides nothing
        wait = min(2 * wait, LONGEST_WAIT)
        try:
            reply = await send()
        except httpx.ReadTimeout:
            raise
        except httpx.TransportError as error:
            if not left:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise EngineError(
                    f"no server at {config.url} after {config.retries + 1} attempts ({reason}); {hint}"
                ) from error
        else:
            if reply.status_code == 401:
                raise EngineError(f"{config.url} refused the API key; set {config.api_key_env} or pass api_key=")
            if reply.status_code not in PASSING or not left:
                return reply
            pause = max(pause, min(retry_after(reply.headers), LONGEST_WAIT))
        await asyncio.sleep(pause)
    raise AssertionError("unreachable: the last turn returns or raises")


HINT = "start it with `vllm serve MODEL` or correct the URL"


class Client:
    """Connections to one server. Use it from one event loop only."""

    model: str  # served name of the base model; known after `discover`
    wire: Wire  # the route that serves requests; known after `discover`
    limits: Limits  # of the server; known after `discover`

    def __init__(self, config: HTTPConfig) -> None:
        import httpx

        self._config = config
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._http = httpx.AsyncClient(
            base_url=config.url.rstrip("/"),
            headers=config.headers,
            timeout=httpx.Timeout(config.read_timeout, connect=config.connect_timeout, pool=None),
            limits=httpx.Limits(max_connections=config.max_concurrency + 2),
        )

    async def discover(self) -> None:
        """Ask the server what it serves, and whether it has the route this engine needs.

        Raises:
            EngineError: unreachable, not a suitable server, or not the wanted model.
        """
        reply = await self._probe("GET", MODELS)
        try:
            listing = reply.json() if reply.status_code == 200 else None
        except ValueError:
            listing = None
        if not isinstance(listing, dict):
            raise EngineError(f"{self._config.url}{MODELS} answered {reply.status_code}; is it a vllm serve?")
        self.model, self.limits = served(listing, self._config)
        if (await self._probe("POST", ABORT, {"request_ids": []})).status_code == 200:
            self.wire = TOKENS
            return
        trial = Generate((1,), 1, watch_ids=(0, 1))
        reply = await self._probe("POST", COMPLETIONS.route, COMPLETIONS.body(trial, self.model, "trial", 2))
        try:
            COMPLETIONS.parse(reply.content, trial)
        except BadReplyError as error:
            said = server_message(reply.content) if reply.status_code != 200 else error
            raise EngineError(
                f"{self._config.url} has no {TOKENS.route}, and its {COMPLETIONS.route} gives no log-probabilities of "
                f"token ids ({reply.status_code}: {said}); serve the model with vLLM 0.32 or later"
            ) from None
        self.wire = COMPLETIONS

    async def _probe(self, method: str, path: str, content: Any = None) -> Any:
        import httpx

        seconds = min(self._config.read_timeout, LONGEST_WAIT)
        try:
            return await self._patiently(lambda: self._http.request(method, path, json=content, timeout=seconds))
        except httpx.ReadTimeout:
            raise EngineError(
                f"no answer from {self._config.url}{path} within {seconds:g} s; is it overloaded?"
            ) from None

    async def generate(self, request: Generate, ids: Callable[[], str]) -> Generated | Failed:
        """Serve one request when a slot is free.

        Args:
            request: checked against the limits before.
            ids: makes a fresh request id; called once for every time the request is sent.

        Raises:
            EngineError: the server cannot be reached any more, or refuses the API key.
        """
        import httpx

        model, sent = request.adapter or self.model, ""

        def send() -> Awaitable[Any]:
            nonlocal sent
            sent = ids()
            return self._http.post(
                self.wire.route, json=self.wire.body(request, model, sent, self.limits.max_model_len)
            )

        async with self._slots:
            try:
                reply = await self._patiently(send)
            except httpx.ReadTimeout:
                await self.abort([sent])
                return Failed(f"no answer from {self._config.url} within {self._config.read_timeout:g} s")
        if reply.status_code != 200:
            return Failed(f"{self._config.url} answered {reply.status_code}: {server_message(reply.content)}")
        try:
            return self.wire.parse(reply.content, request)
        except BadReplyError as error:
            return Failed(f"{self._config.url}: {error}")

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ask the server to stop a request, and ignore whether it does. Completions end with their connection."""
        import httpx

        if self.wire is not TOKENS:
            return
        try:
            await self._http.post(ABORT, json={"request_ids": [engine_request_id(i) for i in request_ids]}, timeout=5.0)
        except httpx.HTTPError:
            return

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _patiently(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Greedy requests may be repeated without harm; see `patiently`."""
        return await patiently(send, self._config, HINT)


T = TypeVar("T")

WAIT = 0.01
"""Seconds that `step` waits for a first result; short, so that new requests of other threads are noticed."""


class HTTPEngine:
    """An `Engine` on a remote `vllm serve`. Make one with `HTTPEngine.load`.

    A request that fails comes back as `Failed`; a server that is gone raises `EngineError` from `step` and drops what
    was under way, after which the engine may be used again, should the server come back.
    """

    def __init__(self, config: HTTPConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="selfrag-http", daemon=True)
        self._thread.start()
        self._results: queue.SimpleQueue[tuple[Ticket, Generated | Failed | BaseException]] = queue.SimpleQueue()
        self._live: set[Ticket] = set()
        self._next: Ticket = 0
        self._closed = False
        self._pid = os.getpid()
        self._session = uuid.uuid4().hex
        # Touched by the loop's thread only:
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._sent: dict[Ticket, str] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._client = self._run(self._open(config))

    @classmethod
    def load(cls, config: HTTPConfig) -> HTTPEngine:
        """Connect to a server and ask what it serves.

        Raises:
            EngineError: no such server, model or key; names the URL and what to do.
        """
        self = cls(config)
        try:
            self._run(self._client.discover())
        except BaseException:
            self.close()
            raise
        return self

    @property
    def limits(self) -> Limits:
        """What the served model can take."""
        return self._client.limits

    def submit(self, request: Generate) -> Ticket:
        """Send a request as soon as a slot is free. One that cannot be served comes back as `Failed`."""
        self._check_open()
        ticket, self._next = self._next, self._next + 1
        self._live.add(ticket)
        reason = refusal(request, self.limits)
        if reason is None:
            self._loop.call_soon_threadsafe(self._start, ticket, request)
        else:
            self._results.put((ticket, Failed(reason)))
        return ticket

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """Return what arrived; waits a hundredth of a second for a first answer while any is due."""
        self._check_open()
        done: list[tuple[Ticket, Generated | Failed]] = []
        while self._live:
            try:
                ticket, result = self._results.get(block=not done, timeout=WAIT)
            except queue.Empty:
                break
            if ticket not in self._live:
                continue
            if isinstance(result, BaseException):
                self.abort(list(self._live))
                raise result
            self._live.discard(ticket)
            done.append((ticket, result))
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests here and at the server."""
        known = [ticket for ticket in tickets if ticket in self._live]
        self._live.difference_update(known)
        if known and not self._closed:
            self._loop.call_soon_threadsafe(self._cancel, known)

    def close(self) -> None:
        """Abort what is under way, close the connections and stop the thread."""
        if self._closed:
            return
        self._closed = True
        self._live.clear()
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10.0)
        self._loop.close()

    def _check_open(self) -> None:
        check_process(self._pid)
        if self._closed:
            raise EngineError("the HTTP engine is closed; load it again")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # From here on: on the loop's thread.

    async def _open(self, config: HTTPConfig) -> Client:
        return Client(config)

    def _start(self, ticket: Ticket, request: Generate) -> None:
        self._tasks[ticket] = self._loop.create_task(self._serve(ticket, request))

    async def _serve(self, ticket: Ticket, request: Generate) -> None:
        attempts = 0

        def fresh_id() -> str:
            nonlocal attempts
            attempts += 1
            self._sent[ticket] = f"{self._session}-{ticket}-{attempts}"
            return self._sent[ticket]

        try:
            result: Generated | Failed | BaseException = await self._client.generate(request, fresh_id)
        except Exception as error:  # travels to the caller's thread, which raises it
            result = error
        self._tasks.pop(ticket, None)
        self._sent.pop(ticket, None)
        self._results.put((ticket, result))

    def _cancel(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            if (task := self._tasks.pop(ticket, None)) is not None:
                task.cancel()
        sent = [self._sent.pop(ticket) for ticket in tickets if ticket in self._sent]
        if sent:
            task = self._loop.create_task(self._client.abort(sent))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _shut(self) -> None:
        tasks = list(self._tasks.values())
        self._cancel(list(self._tasks))
        await asyncio.gather(*tasks, *self._aborts, return_exceptions=True)
        await self._client.close()
