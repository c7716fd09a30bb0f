"""The HTTP application: one method a route.

Around every route stand keys, sizes, errors in OpenAI's shape, and streams that end with their client.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from retrieval.passage import Passage
from selfrag.cluster import connect
from selfrag.common.errors import UserError, require
from selfrag.common.reading import parse_json
from selfrag.common.untrusted import clean
from selfrag.decoding.answer import Answer, Segment, Usage, segments_of
from selfrag.decoding.rescore import rescore
from selfrag.decoding.trace import trace_of
from selfrag.serving.citations import Writer, selfrag_object
from selfrag.serving.guard import (
    Access,
    CleanResponse,
    Guard,
    RequestLimits,
    as_fault,
    refusal,
)
from selfrag.serving.index_watch import IndexWatch
from selfrag.serving.replies import ChatReply, Event, Reply, ResponsesReply
from selfrag.serving.requests import (
    ChatRequest,
    Fault,
    JudgeRequest,
    RescoreRequest,
    ResponsesRequest,
    RetrieveRequest,
    SearchRequest,
    ServedQuestion,
)
from selfrag.serving.service import Answering, AnswerStore, Service
from selfrag.serving.settings import Replicas, ServiceSettings
from selfrag.viewer.traces import ServedModel, served_page

PING = 15.0
"""Seconds of silence after which a stream sends a comment, so that proxies keep it open."""
SWITCH_SECONDS = 0.0005
"""Seconds after which the event loop gets the interpreter from the engine's thread, in place of Python's 0.005.

The loop gives the interpreter away with every message that it sends. With 50 streams beside a busy thread on two cores
(AMD EPYC), 0.0005 makes the median of `/health` 29 ms in place of 72, and answers 1.4 times as many requests.
"""
LAGS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bounds of the histogram of the event loop's lag, in seconds."""
T = TypeVar("T")


class EventStream(StreamingResponse):
    """A stream of server-sent events that ends its work when the client leaves."""

    def __init__(
        self, release: Callable[[], None], events: AsyncGenerator[bytes, None]
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._release, self._events = release, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end or the client leaves."""
        try:
            async with aclosing(self._events):
                await while_connected(receive, lambda: self.stream_response(send))
        finally:
            self._release()


async def while_connected(
    receive: Receive, work: Callable[[], Awaitable[T]]
) -> T | None:
    """Return what `work` returns; None, with the work cancelled, if the client leaves before."""
    working = asyncio.ensure_future(work())
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def encoded(
    events: AsyncGenerator[Mapping[str, Any], None], done: bytes
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events, with a comment after each silence of `PING` seconds."""
    async with aclosing(events) as source:
        waiting = asyncio.ensure_future(anext(source, None))
        try:
            while True:
                ready, _ = await asyncio.wait({waiting}, timeout=PING)
                if not ready:
                    yield b": waiting\n\n"
                    continue
                event = waiting.result()
                if event is None:
                    break
                data = json.dumps(clean(event), ensure_ascii=True, allow_nan=False)
                if "type" in event:
                    yield f"event: {event['type']}\ndata: {data}\n\n".encode()
                else:
                    yield f"data: {data}\n\n".encode()
                waiting = asyncio.ensure_future(anext(source, None))
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
    if done:
        yield done


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "A field is wrong."},
    401: {"description": "No valid API key."},
    404: {"description": "No such model or answer."},
    413: {"description": "The body is too large."},
    429: {"description": "Too many questions wait."},
    502: {"description": "The search failed."},
    503: {"description": "The engine is down."},
}


class Metrics:
    """What `/metrics` tells."""

    def __init__(self, service: Service) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "selfrag_requests",
            "Requests by route and status",
            ["route", "status"],
            registry=registry,
        )
        self.tokens = Counter(
            "selfrag_tokens", "Tokens by kind", ["kind"], registry=registry
        )
        self.searches = Counter(
            "selfrag_searches", "Queries to the retriever", registry=registry
        )
        self.seconds = Histogram(
            "selfrag_answer_seconds",
            "Seconds from a question to its answer",
            registry=registry,
        )
        self.first = Histogram(
            "selfrag_first_segment_seconds",
            "Seconds to the first segment",
            registry=registry,
        )
        self.loop_lag = Histogram(
            "selfrag_event_loop_lag_seconds",
            "Seconds by which the event loop is late",
            buckets=LAGS,
            registry=registry,
        )
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "selfrag_open_questions": (
                "Questions and searches that run or wait",
                lambda: service.open,
            ),
            "selfrag_engine_up": (
                "Whether the engine answers",
                lambda: service.state == "ok",
            ),
            "selfrag_index_generation": (
                "Generation of the index that is searched",
                lambda: (service.index_version() or {"generation": 0})["generation"],
            ),
            "selfrag_kept_answers": (
                "Answers that are kept",
                lambda: service.store.size().answers,
            ),
            "selfrag_kept_bytes": (
                "Bytes of the answers that are kept",
                lambda: service.store.size().bytes,
            ),
        }
        for name, (what, value) in gauges.items():
            Gauge(name, what, registry=registry).set_function(value)

    async def watch_loop(self) -> None:
        """Observe once a second by how much the event loop is late, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 1.0
            await asyncio.sleep(1.0)
            self.loop_lag.observe(max(0.0, loop.time() - due))

    def count(self, usage: Usage) -> None:
        """Add the cost of an answer."""
        self.tokens.labels("prompt").inc(usage.prompt_tokens)
        self.tokens.labels("cached").inc(usage.cached_tokens)
        self.tokens.labels("generated").inc(usage.generated_tokens)
        self.searches.inc(usage.searches)


class Server:
    """The routes of a service. Each method is one route; its docstring is shown at `/docs`."""

    def __init__(self, service: Service, metrics: Metrics, page: ServedModel) -> None:
        self._service, self._metrics, self._page = service, metrics, page

    async def chat(self, request: Request, body: ChatRequest) -> Response:
        """Answer a conversation. The `selfrag` object of the request sets how, that of the reply says why."""
        service = self._service
        question = body.question(
            service.rag.defaults, service.style, events=service.events
        )
        usage = body.stream_options is not None and body.stream_options.include_usage
        reply = ChatReply(service.name, question.style, question.events, usage)
        return await self._answered(request, body, question, reply, b"data: [DONE]\n\n")

    async def responses(self, request: Request, body: ResponsesRequest) -> Response:
        """Answer, in the shape of the Responses API."""
        service = self._service
        question = body.question(service.rag.defaults, service.style, events=False)
        reply = ResponsesReply(service.name, question.style, body.instructions)
        return await self._answered(request, body, question, reply)

    async def _answered(
        self,
        request: Request,
        body: ChatRequest | ResponsesRequest,
        question: ServedQuestion,
        reply: Reply,
        done: bytes = b"",
    ) -> Response:
        service = self._service
        if body.model != service.name:
            raise self._unknown(body.model)
        place = service.admit()
        streaming = False
        try:
            question = await service.fit_conversation(question)
            reply.index = service.index_version()
            pieces = service.begin(question, streamed=body.stream)
            if body.stream:
                streaming = True
                events = encoded(self._events(pieces, reply), done)
                return EventStream(place.close, events)
            content = await while_connected(
                request.receive, lambda: self._complete(pieces, reply)
            )
            if content is None:  # the client has left
                return Response(status_code=499)
            return CleanResponse(content)
        finally:
            if not streaming:
                place.close()

    async def _complete(
        self, pieces: AsyncGenerator[Segment | Answer, None], reply: Reply
    ) -> dict[str, Any]:
        async for piece, name in self._watched(pieces):
            if isinstance(piece, Answer):
                return reply.whole(piece, name)
        raise RuntimeError("the pieces of an answer ended without it")

    async def _watched(
        self, pieces: AsyncGenerator[Segment | Answer, None]
    ) -> AsyncGenerator[tuple[Segment | Answer, str | None], None]:
        """Yield the pieces, counted; the answer comes with the name under which it is kept."""
        started, first = time.perf_counter(), True
        async with aclosing(pieces) as source:
            async for piece in source:
                since = time.perf_counter() - started
                if first:
                    self._metrics.first.observe(since)
                    first = False
                if isinstance(piece, Segment):
                    yield piece, None
                    continue
                self._metrics.seconds.observe(since)
                self._metrics.count(piece.usage)
                yield piece, await asyncio.to_thread(self._service.store.keep, piece)

    async def _events(
        self, pieces: AsyncGenerator[Segment | Answer, None], reply: Reply
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a reply; an error becomes the last of them."""
        for event in reply.start():
            yield event
        try:
            async with aclosing(self._watched(pieces)) as source:
                async for piece, name in source:
                    events = (
                        reply.finish(piece, name)
                        if isinstance(piece, Answer)
                        else reply.segment(piece)
                    )
                    for event in events:
                        yield event
        except Exception as error:
            yield as_fault(error).body()

    def rescored(self, body: RescoreRequest) -> Response:
        """Return the answer that other weights or another threshold would have given, without the model."""
        record: dict[str, Any] = {"trace": body.trace, "final": True}
        if body.answer_id is not None:
            record = self._kept(body.answer_id)
        trace = trace_of(record["trace"])
        weights = None
        if body.weights is not None:
            weights = body.weights.changed(trace.decoding.weights)
        changed, exact = rescore(trace, weights, body.threshold)
        text, segments = segments_of(changed, changed.best)
        answer = Answer(
            changed.question,
            text,
            segments,
            Usage(),
            changed,
            exact and record["final"],
        )
        writer = Writer.of(answer, body.citation_style or self._service.style)
        about = selfrag_object(answer, writer, body.answer_id)
        return CleanResponse({"content": writer.text, **about})

    def answer(self, name: str) -> Response:
        """Return a kept answer with its trace."""
        record = self._kept(name)
        return CleanResponse({"id": name, **record["answer"], "trace": record["trace"]})

    def _kept(self, name: str) -> dict[str, Any]:
        record = self._service.store.find(name)
        if record is None:
            raise Fault(
                404, "no answer of that id is kept here; ask again", "answer_not_found"
            )
        return record

    async def models(self) -> dict[str, Any]:
        """List the one model of this server."""
        return {"object": "list", "data": [self._model()]}

    async def model(self, name: str) -> dict[str, Any]:
        """Return the model of this server, by its name."""
        if name != self._service.name:
            raise self._unknown(name)
        return self._model()

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._service.name,
            "object": "model",
            "created": 0,
            "owned_by": "selfrag",
        }

    def _unknown(self, name: str) -> Fault:
        return Fault(
            404,
            f"no model {name!r:.80} here; it is {self._service.name!r}",
            "model_not_found",
        )

    async def retrieve(self, body: RetrieveRequest) -> dict[str, Any]:
        """Search for passages, as Search-R1 asks for them."""
        most = body.topk or self._service.rag.defaults.passages
        documents = []
        for passages in await self._service.search(body.queries, most):
            scored = body.return_scores
            documents.append([_document(hit, scored=scored) for hit in passages])
        return {"result": documents}

    async def search(self, body: SearchRequest) -> dict[str, Any]:
        """Search for passages, as clients of massive-serve ask for them."""
        queries = [body.query] if isinstance(body.query, str) else body.query
        results: dict[str, list[list[Any]]] = {"IDs": [], "passages": [], "scores": []}
        for passages in await self._service.search(queries, body.n_docs):
            results["IDs"].append([hit.id for hit in passages])
            results["passages"].append(list(map(_contents, passages)))
            results["scores"].append([hit.score for hit in passages])
        return {"query": body.query, "n_docs": body.n_docs, "results": results}

    async def judge(self, body: JudgeRequest) -> dict[str, Any]:
        """Judge a conversation by a judge of this server: judgments, spans and probabilities."""
        reflection = await self._service.judge(
            body.judge, body.turns(), body.evidence(), body.arguments
        )
        return {"judge": body.judge, **reflection.as_dict()}

    async def health(self) -> Response:
        """Tell whether the engine answers, and which state of the index is searched."""
        status: dict[str, Any] = {"status": self._service.state}
        index = self._service.index_version()
        if index is not None:
            status["index"] = index
        return CleanResponse(status, 200 if self._service.state == "ok" else 503)

    async def metrics(self) -> Response:
        """Return counts and times for Prometheus."""
        return Response(
            generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST
        )

    async def page(self) -> Response:
        """Return the page."""
        text, policy = served_page(self._page)
        return HTMLResponse(
            text,
            headers={
                "Content-Security-Policy": policy,
                "X-Content-Type-Options": "nosniff",
            },
        )


class StrictRequest(Request):
    """A request whose JSON is read as strictly as a file."""

    async def json(self) -> Any:
        """Return the value of the body."""
        if not hasattr(self, "_json"):
            try:
                text = (await self.body()).decode()
                self._json = parse_json(text, "the body")
            except UnicodeDecodeError:
                raise Fault(400, "the body is not UTF-8; send it so") from None
            except UserError as error:
                raise Fault(400, str(error)) from error
        return self._json


class StrictRoute(APIRoute):
    """A route that reads its body as a `StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def create_app(
    service: Service,
    access: Access | None = None,
    watch: IndexWatch | None = None,
    *,
    model: str = "demo",
    index: str | None = None,
) -> FastAPI:
    """Return the application that serves a model.

    Args:
        service: the model, and what it takes on.
        access: who may ask; by default every program of this machine.
        watch: keeps the index in step with files while the server runs.
        model: where the model was loaded from, for the page.
        index: where the index was opened, for the page; None for the demo's.
    """
    access = access or Access()
    metrics = Metrics(service)
    server = Server(
        service, metrics, ServedModel(service.name, model, index, bool(access.keys))
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        if watch is not None:
            watch.start(service)
        watching = asyncio.create_task(metrics.watch_loop())
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        yield
        sys.setswitchinterval(interval)
        watching.cancel()
        if watch is not None:
            await asyncio.to_thread(watch.stop)
        await service.close()

    app = FastAPI(
        title="selfrag",
        lifespan=lifespan,
        description="Answers with citations and reflection tokens.",
        default_response_class=CleanResponse,
    )
    app.router.route_class = StrictRoute
    app.add_middleware(
        Guard,
        access=access,
        limits=RequestLimits(service.capacity.body),
        counter=metrics.requests,
    )
    for kind in (RequestValidationError, HTTPException, UserError, Exception):
        app.add_exception_handler(kind, lambda _, error: refusal(as_fault(error)))
    routes: dict[str, Callable[..., Any]] = {
        "POST /v1/chat/completions": server.chat,
        "POST /v1/responses": server.responses,
        "POST /v1/judge": server.judge,
        "POST /v1/rescore": server.rescored,
        "POST /retrieve": server.retrieve,
        "POST /search": server.search,
        "GET /v1/models": server.models,
        "GET /v1/models/{name:path}": server.model,
        "GET /v1/answers/{name}": server.answer,
        "GET /health": server.health,
        "GET /metrics": server.metrics,
    }
    for name, route in routes.items():
        method, path = name.split()
        app.add_api_route(
            path, route, methods=[method], responses=ERRORS, response_model=None
        )
    app.add_api_route("/", server.page, include_in_schema=False, response_model=None)
    return app


def _contents(passage: Passage) -> str:
    """Return title and text in one, as DPR's corpora have them."""
    return f'"{passage.title}"\n{passage.text}'


def _document(passage: Passage, *, scored: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": _contents(passage)}
    return {"document": document, "score": passage.score} if scored else document


@dataclass(slots=True)
class Served(ServiceSettings):
    """What a server needs to start, here or in a replica; picklable."""

    load: Callable[[], Answering]  # loads the model
    # SQLite file of kept answers; None keeps them in memory, each replica its own
    keep: Path | None = None
    access: Access = field(default_factory=Access, repr=False)  # who may ask
    watch: IndexWatch | None = None  # keeps the index in step with files
    model: str = "demo"  # where the model is loaded from, for the page
    # where the index is opened, for the page; None: the demo's
    index: str | None = None

    def app(self) -> FastAPI:
        """Return the application with its model loaded."""
        settings = {
            item.name: getattr(self, item.name) for item in fields(ServiceSettings)
        }
        store = AnswerStore(self.keep, most_bytes=self.capacity.kept_bytes)
        service = Service(self.load(), self.load, store, **settings)
        return create_app(
            service, self.access, self.watch, model=self.model, index=self.index
        )


def run_on_ray(
    served: Served,
    replicas: Replicas,
    host: str,
    port: int,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve from replicas until a signal or an error ends it. The cluster's proxies listen at this address.

    `ready` is called when all replicas answer. A `UserError` tells that Ray Serve is not installed, that there is no
    cluster, or that a replica does not start.
    """
    serve = require("ray.serve", extra="ray")
    from ray.exceptions import RayError

    ended = threading.Event()

    def build() -> FastAPI:  # Ray knows a builder by its being a plain function
        return served.app()

    with connect(replicas.address):
        try:
            serve.start(http_options={"host": host, "port": port})
            # Ray has put its own handlers there.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: ended.set())
            replica: Any = serve.deployment(
                num_replicas=replicas.count,
                max_ongoing_requests=served.capacity.live + served.capacity.queue,
                ray_actor_options={
                    "num_cpus": replicas.num_cpus,
                    "num_gpus": replicas.num_gpus,
                },
            )(serve.ingress(build)())
            serve.run(replica.bind(), name="selfrag")
            ready()
            ended.wait()
        except (RayError, RuntimeError) as error:
            raise UserError(
                f"the replicas did not start: {' '.join(str(error).split())[-400:]}"
            ) from error
        finally:
            serve.shutdown()
