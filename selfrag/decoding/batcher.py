"""What is asked beside the engine: searches and services of reflectors, gathered over all live decoders, in threads.

Requests that wait at the same time go out as one batch. One thread searches; another one serves all services, so that
two of them may share a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

from retrieval.errors import UserError
from retrieval.passage import Passage, Retriever
from selfrag.decoding.requests import Consult, Consulted, Failed, Result, Retrieve, Retrieved

Owner = TypeVar("Owner")
Service: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Payloads in, one value or `Failed` each out. Where it raises, each payload is served alone."""


@dataclass(slots=True)
class _Line(Generic[Owner]):
    """Requests of one kind that wait, and those that are being served."""

    serve: Callable[[Sequence[Any]], Sequence[Result]]
    pool: ThreadPoolExecutor
    wanted: list[tuple[Owner, int, Any]] = field(default_factory=list)
    served: list[tuple[Owner, int, Any]] = field(default_factory=list)
    future: Future[Sequence[Result]] | None = None


class BackgroundBatcher(Generic[Owner]):
    """Queues requests for an owner, and gives back each owner's results."""

    def __init__(
        self, retriever: Retriever | None, services: Mapping[str, Service], ring: Callable[[], None] = lambda: None
    ) -> None:
        """Start nothing yet.

        Args:
            retriever: serves searches, if any are asked for.
            services: by name.
            ring: called, in some thread, whenever results have arrived.
        """
        self._ring = ring
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="selfrag-search")
        self._reflector = ThreadPoolExecutor(1, thread_name_prefix="selfrag-reflect")
        self._search: _Line[Owner] = _Line(lambda requests: search(retriever, requests), self._searcher)
        self._services = services
        self._lines: dict[str, _Line[Owner]] = {}

    def ask(self, owner: Owner, position: int, request: Retrieve | Consult) -> None:
        """Queue a request."""
        self._line(request).wanted.append((owner, position, request))

    def forget(self, owner: Owner) -> None:
        """Drop what an owner waits for."""
        for line in self._all():
            line.wanted = [item for item in line.wanted if item[0] is not owner]

    def start(self) -> None:
        """Send off what waits, one batch of a kind at a time."""
        for line in self._all():
            if line.future is None and line.wanted:
                line.served, line.wanted = line.wanted, []
                line.future = line.pool.submit(line.serve, [request for *_, request in line.served])
                line.future.add_done_callback(lambda _: self._ring())

    def collect(self) -> Iterator[tuple[tuple[Owner, int], Result]]:
        """What is done, with its owner and position."""
        for line in self._all():
            if line.future is not None and line.future.done():
                found, line.future, served = line.future.result(), None, line.served
                for (owner, position, _), result in zip(served, found, strict=True):
                    yield (owner, position), result

    def close(self) -> None:
        """Start nothing more; what runs is not waited for."""
        for pool in (self._searcher, self._reflector):
            pool.shutdown(wait=False, cancel_futures=True)

    def _all(self) -> list[_Line[Owner]]:
        return [self._search, *self._lines.values()]

    def _line(self, request: Retrieve | Consult) -> _Line[Owner]:
        if isinstance(request, Retrieve):
            return self._search
        name = request.service
        if name not in self._lines:
            self._lines[name] = _Line(lambda requests: consult(self._services.get(name), requests), self._reflector)
        return self._lines[name]


def consult(service: Service | None, requests: Sequence[Consult]) -> Sequence[Result]:
    """One call for many decoders. Where it fails, each request is served alone and fails with its own reason."""
    if service is None:
        return [Failed(f"no service {requests[0].service!r}")] * len(requests)
    found = _together(service, [request.payload for request in requests], requests[0].service, "requests")
    return [value if isinstance(value, Failed) else Consulted(value) for value in found]


def search(retriever: Retriever | None, requests: Sequence[Retrieve]) -> Sequence[Result]:
    """One search for many decoders. Where it fails, each query is searched alone and fails with its own reason."""
    if retriever is None:
        return [Failed("no retriever: pass retriever=.. or evidence=.., on the command line --index DIR")] * len(
            requests
        )
    most = max(request.k for request in requests)
    found = _together(lambda queries: retriever(queries, most), [r.query for r in requests], "the retriever", "queries")
    return [_retrieved(passages, request.k) for passages, request in zip(found, requests, strict=True)]


def _together(serve: Callable[[list[Any]], Any], given: list[Any], name: str, what: str) -> list[Any]:
    """A value or `Failed` for each thing given, from one call; from a call for each where that one fails.

    A user's callable may raise anything, and what one question asks must not take other questions down.
    """
    try:
        found = serve(given)
    except UserError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if not _is_list(found):
            reason = f"{name} returned {type(found).__name__}, not a list for its {what}"
        elif len(found) != len(given):
            reason = f"{name} answered {len(found)} of {len(given)} {what}"
        else:
            return list(found)
    return [Failed(reason)] if len(given) == 1 else [_together(serve, [one], name, what)[0] for one in given]


def _retrieved(passages: object, k: int) -> Result:
    if isinstance(passages, Failed):
        return passages
    if not _is_list(passages):
        return Failed(f"the retriever returned {type(passages).__name__} for a query, not a list of passages")
    for passage in passages:
        if not isinstance(passage, Passage):
            return Failed(f"the retriever returned {type(passage).__name__} where a Passage was expected")
    return Retrieved(tuple(passages[:k]))


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


class SharedRetriever:
    """A retriever for several threads: one search at a time, for all queries that have gathered meanwhile."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._searching, self._changing = Lock(), Lock()
        self._waiting: list[tuple[Sequence[str], int, Future[Sequence[Sequence[Passage]]]]] = []

    def __call__(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Up to `k` passages for each query, best first; raises what the retriever raises."""
        mine: Future[Sequence[Sequence[Passage]]] = Future()
        with self._changing:
            self._waiting.append((queries, k, mine))
        with self._searching:
            with self._changing:
                together, self._waiting = self._waiting, []
            if len(together) == 1 or not self._serve_together(together):
                for queries_alone, k_alone, future in together:
                    try:
                        future.set_result(self._retriever(queries_alone, k_alone))
                    except BaseException as error:  # belongs to the thread that asked
                        future.set_exception(error)
        return mine.result()

    def _serve_together(
        self, together: Sequence[tuple[Sequence[str], int, Future[Sequence[Sequence[Passage]]]]]
    ) -> bool:
        """One search for all; False where it cannot be told whose queries went wrong, or there is nothing to do."""
        every = [query for queries, *_ in together for query in queries]
        try:
            found = self._retriever(every, max((k for _, k, _ in together), default=0)) if every else []
        except Exception:
            return False
        if not _is_list(found) or len(found) != len(every) or not all(map(_is_list, found)):
            return False
        rest = iter(found)
        for queries, k, future in together:
            future.set_result([next(rest)[:k] for _ in queries])
        return True
