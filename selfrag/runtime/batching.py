"""Searches and services beside the engine: those of all callers that wait are served by one call.

A batch that fails is served again one by one, so that a bad query fails alone. What a retriever gave is checked here
and nowhere else (`retrieval.search.as_retriever`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

from retrieval.passage import Passage, Retriever
from retrieval.search import as_retriever
from selfrag.common.errors import UserError, count_of
from selfrag.reflection.requests import (
    External,
    ExternalResult,
    ExternalService,
    Failed,
    RequestResult,
    Retrieve,
    Retrieved,
)

Serve: TypeAlias = Callable[[list[Any]], Sequence[RequestResult]]
"""Requests in, a result for each out."""


class Batcher:
    """Serves requests of callers in any threads by one function, one batch at a time, in a thread of its own.

    The thread ends when nothing waits. A function that hangs keeps this one thread, however many requests come.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._changing = Lock()
        self._waiting: list[tuple[list[Any], Future[Sequence[RequestResult]]]] = []
        self._running = False

    def submit(self, requests: Sequence[Any]) -> Future[Sequence[RequestResult]]:
        """Queue requests, whose results come together; they share a batch with all that wait."""
        future: Future[Sequence[RequestResult]] = Future()
        with self._changing:
            self._waiting.append((list(requests), future))
            if not self._running:
                # No interpreter waits for this thread at its end, since a service may hang.
                threading.Thread(
                    target=self._serve_waiting, name="selfrag-service", daemon=True
                ).start()
                self._running = True
        return future

    def _serve_waiting(self) -> None:
        while True:
            with self._changing:
                waiting = self._waiting
                self._waiting = []
                self._running = bool(waiting)
            if not waiting:
                return
            batch = [request for requests, _ in waiting for request in requests]
            try:
                results = iter(self._serve(batch) if batch else ())
                for requests, future in waiting:
                    future.set_result([next(results) for _ in requests])
            except (
                BaseException
            ) as error:  # a programming error, which belongs to those who wait
                for _, future in waiting:
                    if not future.done():
                        future.set_exception(error)


class SharedRetriever:
    """A retriever for several threads. It runs one search at a time, for all queries that arrived meanwhile."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever
        self.batcher = Batcher(partial(search, retriever))

    def __call__(self, queries: Sequence[str], k: int) -> list[Sequence[Passage]]:
        """Return up to `k` passages for each query, best first.

        Raises:
            UserError: the retriever failed, or what it gave are no passages.
        """
        hits: list[Sequence[Passage]] = []
        for result in self.batcher.submit(
            [Retrieve(query, k) for query in queries]
        ).result():
            if not isinstance(result, Retrieved):
                raise UserError(
                    result.reason if isinstance(result, Failed) else str(result)
                )
            hits.append(result.passages)
        return hits


def search(
    retriever: Retriever | None, requests: Sequence[Retrieve]
) -> list[RequestResult]:
    """Serve the queries of many decoders by one search. If that fails, each runs alone, with its own error."""
    if retriever is None:
        reason = "no retriever: pass retriever=.. or evidence=.., on the command line --index DIR"
        return [Failed(reason)] * len(requests)
    checked = as_retriever(retriever)

    def serve(batch: list[Retrieve]) -> list[RequestResult]:
        most = max(request.k for request in batch)
        lists = checked([request.query for request in batch], most)
        return [
            Retrieved(tuple(passages[: request.k]))
            for passages, request in zip(lists, batch, strict=True)
        ]

    return _serve_together(serve, list(requests))


def call_service(
    service: ExternalService, requests: Sequence[External]
) -> list[RequestResult]:
    """Serve the requests of many decoders by one call. If that fails, each is served alone, with its own error."""
    name = requests[0].name

    def serve(batch: list[External]) -> list[RequestResult]:
        values = service([request.payload for request in batch])
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise UserError(
                f"{name} returned {type(values).__name__}, not a list for its requests"
            )
        if len(values) != len(batch):
            raise UserError(
                f"{name} answered {len(values)} of {count_of(len(batch), 'requests')}"
            )
        ready = (Failed, ExternalResult)
        return [
            value if isinstance(value, ready) else ExternalResult(value)
            for value in values
        ]

    return _serve_together(serve, list(requests))


def _serve_together(
    serve: Callable[[list[Any]], list[RequestResult]], batch: list[Any]
) -> list[RequestResult]:
    """Return a result for each request, from one call. If that call fails, each request gets its own call.

    A user's callable may raise any exception, and one question must not make the others fail.
    """
    try:
        return serve(batch)
    except UserError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    if len(batch) == 1:
        return [Failed(reason)]
    return [_serve_together(serve, [request])[0] for request in batch]
