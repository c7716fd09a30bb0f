"""Retrievers over HTTP: search servers, and web search by SearXNG or Google, whose pages become passages.

What a search engine names is untrusted: pages are asked for at public addresses only, a few megabytes are read of each,
in a bounded time, and no script of them is run.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from mimetypes import guess_extension
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from selfrag.extensions.web.fetching import BoundedTransport
from selfrag.interface import (
    ENCODINGS,
    Content,
    IsolatedReader,
    Passage,
    ReadingOptions,
    SentenceFinder,
    Splitting,
    UserError,
    check_float,
    check_int,
    check_url,
    count_of,
    cut,
    read_document,
    sentence_finder,
)

LOG = logging.getLogger("selfrag.web")
GOOGLE = "https://www.googleapis.com/customsearch/v1"
KEY = "GOOGLE_API_KEY"
"""Variable of the environment with the user's key."""
ELSER = ".elser-2-elasticsearch"
"""Inference endpoint that an Elasticsearch has from the beginning."""
FORMS = "searxng:URL or google:ENGINE"
_MOST_REPLY, _MOST_PAGE = 64 << 20, 4 << 20  # bytes
_REDIRECTS = 5
_PAGE_SECONDS = 60.0  # for a page that a user names
_AT_ONCE = 8  # pages
_KINDS = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/plain": ".txt",
    "application/pdf": ".pdf",
}


def shown(address: str) -> str:
    """Return an address as messages show it, without a password."""
    return address.rpartition("@")[2][:120]


def answered(
    client: httpx.Client, method: str, address: str, *, hint: str = "", **request: Any
) -> dict[str, Any]:
    """Return the JSON object that a search server answers; whatever else it does is one line.

    What `params` of the request adds to `address` is not printed. `hint` says what to do where the answer is no JSON.
    """
    name = shown(address)
    try:
        with client.stream(method, address, **request) as reply:
            content = _beginning(reply, _MOST_REPLY + 1)
    except httpx.HTTPError as error:
        raise UserError(f"{name} cannot be searched: {type(error).__name__}") from error
    except ValueError as error:
        raise UserError(f"{name} cannot be searched: {error}") from error
    if len(content) > _MOST_REPLY:
        raise UserError(f"{name} answered more than {_MOST_REPLY:,} bytes")
    if reply.status_code != 200:
        raise UserError(
            f"{name} answered {reply.status_code}: {content[:200].decode(errors='replace')}"
        )
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} did not answer in JSON{hint}") from error
    if not isinstance(reply, dict):
        raise UserError(f"{name} answered {type(reply).__name__}, not an object")
    return reply


def _client(
    address: str, seconds: float, headers: Mapping[str, str]
) -> tuple[httpx.Client, str]:
    """Return a client for one address, and the address without user and password, which httpx would log."""
    url = httpx.URL(address)
    client = httpx.Client(
        transport=BoundedTransport(seconds, address=address),
        headers={"Accept-Encoding": ENCODINGS, **headers},
        auth=(url.username, url.password) if url.userinfo else None,
    )
    return client, str(url.copy_with(userinfo=b""))


class RemoteRetriever:
    """Search by a server. Safe to call from many threads.

    Args:
        url: address that ends in `/retrieve` (queries, topk, return_scores), in `/search` (query, n_docs), or in
            `/INDEX/_search` of Elasticsearch, which searches by ELSER: `?field=` names the field of sparse vectors
            (`ml.tokens`), and `?model=` the inference endpoint (`.elser-2-elasticsearch`).
        timeout: seconds for a whole search.
        headers: sent with each request, such as `{"Authorization": "Bearer .."}`.

    Raises:
        UserError: the address is none of these.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        check_url(url, "http://127.0.0.1:8000/retrieve")
        self._url = shown(url)
        self._kind = urlsplit(url).path.rstrip("/").rpartition("/")[2]
        if self._kind not in ("retrieve", "search", "_search"):
            raise UserError(
                f"url {self._shown!r:.80} ends neither in /retrieve nor in /search nor in /_search; add one of them"
            )
        check_float("timeout", timeout, above=True)
        self._client, self._url = _client(url, timeout, headers or {})
        if self._kind == "_search":
            self._url = self._url.partition("?")[0]
        options = dict(parse_qsl(urlsplit(url).query))
        self._elser = {
            "field": options.get("field", "ml.tokens"),
            "inference_id": options.get("model", ELSER),
        }

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return for each query up to `k` passages, in the order of the server.

        Raises:
            UserError: the server cannot be reached, refuses, or answers something else.
        """
        check_int("k", k, 0)
        if not queries or k == 0:
            return [[] for _ in queries]
        if self._kind == "_search":
            return [self._sparse(query, k) for query in queries]
        if self._kind == "retrieve":
            reply = self._asked(
                {"queries": list(queries), "topk": k, "return_scores": True}
            )
            lists: Any = reply.get("result")
        else:
            reply = self._asked({"query": list(queries), "n_docs": k})
            results = reply.get("results")
            lists = list(_rows(results)) if isinstance(results, dict) else None
        if not _is_list_of(list, lists) or len(lists) != len(queries):
            raise UserError(
                f"{self._shown} did not answer with a list for each of {count_of(len(queries), 'queries')}"
            )
        return [[self._passage(hit) for hit in hits[:k]] for hits in lists]

    def _sparse(self, query: str, k: int) -> list[Passage]:
        """Return what Elasticsearch finds by the sparse vectors of ELSER."""
        body = {"query": {"sparse_vector": {**self._elser, "query": query}}, "size": k}
        outer = self._asked(body).get("hits")
        hits = outer.get("hits") if isinstance(outer, dict) else None
        if not isinstance(hits, list):
            raise UserError(f"{self._shown} answered no list of hits")
        passages = []
        for hit in hits[:k]:
            source = hit.get("_source") if isinstance(hit, dict) else None
            if not isinstance(source, dict) or not isinstance(source.get("text"), str):
                raise UserError(f"{self._shown} answered a hit without a text")
            title, score = str(source.get("title") or ""), _number(hit.get("_score"))
            passages.append(
                Passage(str(hit.get("_id", "")), source["text"], title, score)
            )
        return passages

    @property
    def _shown(self) -> str:
        return shown(self._url)

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return answered(self._client, "POST", self._url, json=body)

    def _passage(self, hit: Any) -> Passage:
        """Return a passage of `{"document": {"contents": ..}}`; the first line of the contents is the title."""
        hit = hit if isinstance(hit, dict) else {}
        document = hit.get("document", hit)
        contents = document.get("contents") if isinstance(document, dict) else None
        if not isinstance(contents, str):
            raise UserError(f"{self._shown} answered a passage without contents")
        title, newline, text = contents.partition("\n")
        score = _number(hit.get("score"))
        identifier = str(document.get("id", contents[:80]))
        if not newline:
            return Passage(identifier, contents, "", score)
        title = title.strip().removeprefix('"').removesuffix('"')
        return Passage(identifier, text, title, score)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _rows(results: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the lists of massive-serve's results in the shape of `/retrieve`."""
    columns = [results.get(name) for name in ("IDs", "passages", "scores")]
    if not _is_list_of(list, columns):
        return
    for row in zip(*columns, strict=False):
        if not _is_list_of(list, list(row)):
            return
        hits = []
        for identifier, text, score in zip(*row, strict=False):
            document = {"id": identifier, "contents": text}
            hits.append({"document": document, "score": score})
        yield hits


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that a search found."""

    url: str
    title: str
    snippet: str


class WebRetriever:
    """Web search as a retriever. Safe to call from many threads.

    Args:
        name: `searxng:URL` of an instance that answers in JSON (`search.formats` in its settings), or `google:ENGINE`
            with the id of a Programmable Search Engine; its key is read from `GOOGLE_API_KEY`.
        per_page: passages of a page, from its beginning: 1 takes introductions, as the Self-RAG paper does (B.2).
        pages: whether pages are read; else the engine's snippets are the passages, as where a page cannot be read.
        splitting: how long passages are.
        timeout: seconds for a search, and as many again for the pages of a query together: fetched, read and cut into
            passages. A page that is not ready by then leaves its snippet.
        private: whether pages at private addresses are read, too, for a search of one's own network.
        google: address of Google's API.

    Attributes:
        unread: how many pages left their snippet because they were `slow` or `unreadable`. A warning is logged for
            each query, and the metadata of such a passage has the reason as `unread`.

    Raises:
        UserError: another name, or there is no key.
    """

    def __init__(
        self,
        name: str,
        *,
        per_page: int = 1,
        pages: bool = True,
        splitting: Splitting | None = None,
        timeout: float = 20.0,
        private: bool = False,
        google: str = GOOGLE,
    ) -> None:
        kind, _, target = name.partition(":")
        if kind not in ("searxng", "google") or not target:
            raise UserError(f"{name!r:.80} is no web search; give {FORMS}")
        check_int("per_page", per_page)
        check_float("timeout", timeout, above=True)
        self._per_page, self._timeout = per_page, timeout
        self.unread: Counter[str] = Counter()
        headers = {"User-Agent": "selfrag", "Accept-Encoding": ENCODINGS}
        self._pages: httpx.Client | None = None
        if pages:
            self._pages = httpx.Client(
                transport=BoundedTransport(timeout, public=not private), headers=headers
            )
        self._splitting = splitting or Splitting()
        # each page with text gives a passage or more
        self._reader = IsolatedReader(
            ReadingOptions(self._splitting.ocr, pages=per_page)
        )
        self._engine = ""  # of Google
        if kind == "searxng":
            check_url(target, "http://127.0.0.1:8888")
            address = f"{target.rstrip('/')}/search"
        else:
            key = os.environ.get(KEY, "").strip()
            if not key:
                raise UserError(f"{name} needs a key; set {KEY}")
            address, self._engine = google, target
            # As a parameter of the address, the key would be in every log line of httpx.
            headers = {**headers, "X-Goog-Api-Key": key}
        self._client, self._address = _client(address, timeout, headers)

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return for each query up to `k` passages, in the order of the search engine.

        Raises:
            UserError: the search cannot be reached, refuses, or answers something else. A page that cannot be read
                leaves its snippet.
        """
        check_int("k", k, 0)
        if not queries or k == 0:
            return [[] for _ in queries]
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            return [self._results(pool, query, k) for query in queries]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _results(self, pool: ThreadPoolExecutor, query: str, k: int) -> list[Passage]:
        """Return the passages of one query; a page that is late is left to its thread."""
        hits = self._search(query, k)
        until = time.monotonic() + self._timeout
        if self._pages is None:
            return [passage for hit in hits for passage in _snippet(hit, None)][:k]
        read = partial(self._read, client=self._pages, until=until)
        pages = [pool.submit(read, hit) for hit in hits]
        wait(pages, timeout=self._timeout)
        passages: list[Passage] = []
        reasons: list[str] = []
        for hit, page in zip(hits, pages, strict=True):
            if not page.done():
                self.unread["slow"] += 1
                reasons.append(f"not ready within {self._timeout:g} s")
            elif isinstance(page.exception(), UserError):
                self.unread["unreadable"] += 1
                reasons.append(str(page.exception()))
            else:
                passages += page.result()
                continue
            passages += _snippet(hit, reasons[-1])
        if reasons:
            counts = (len(reasons), len(hits), cut(reasons[0], 200))
            LOG.warning("%d of %d pages left their snippets; the first: %s", *counts)
        return passages[:k]

    def _search(self, query: str, k: int) -> list[Hit]:
        names, hint = (
            ("results", "url", "content"),
            "; SearXNG needs json among its formats",
        )
        fields = {"q": query, "format": "json"}
        if self._engine:
            names, hint = ("items", "link", "snippet"), ""
            # Ten is the API's most, and a search without results has no list.
            fields = {"q": query, "cx": self._engine, "num": str(min(10, k))}
        reply = answered(self._client, "GET", self._address, params=fields, hint=hint)
        return _hits(reply.get(names[0], []), k, *names[1:])

    @cached_property
    def _finder(self) -> SentenceFinder:
        return sentence_finder(self._splitting.sentences)

    def _read(self, hit: Hit, client: httpx.Client, until: float) -> list[Passage]:
        """Return the first passages of a page; a `UserError` tells that it cannot be read."""
        try:
            kind, content = _fetched(client, hit.url, until)
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"page{kind}"
                path.write_bytes(content)
                rows = read_document(
                    path,
                    kind,
                    hit.title or hit.url,
                    self._splitting,
                    self._finder,
                    self._reader,
                )
                kept = list(islice(rows, self._per_page))
        except UserError as error:
            reason = str(error).rpartition(": ")[2]  # without the temporary file
            raise UserError(f"{hit.url[:80]}: {reason}") from error
        except (httpx.HTTPError, OSError, ValueError) as error:
            name = type(error).__name__
            raise UserError(f"{hit.url[:80]}: {name}") from error
        return [
            Passage(f"{hit.url}#{place}", row.passage.text, row.passage.title)
            for place, row in enumerate(kept, 1)
        ]


def _snippet(hit: Hit, unread: str | None) -> list[Passage]:
    """Return what the search engine shows of a page, and why the page was not read."""
    if not hit.snippet.strip():
        return []
    metadata = {} if unread is None else {"unread": unread}
    return [Passage(hit.url, hit.snippet, hit.title, metadata=metadata)]


def _fetched(client: httpx.Client, url: str, until: float) -> tuple[str, bytes]:
    """Return the kind and the content of a page."""
    for _ in range(_REDIRECTS):
        with client.stream("GET", url, extensions={"until": until}) as reply:
            if reply.next_request is not None:
                url = str(reply.next_request.url)
                continue
            kind = _KINDS.get(_media(reply))
            if reply.status_code != 200 or kind is None:
                raise UserError("it gives no page")
            return kind, _beginning(reply, _MOST_PAGE)
    raise UserError("too many redirects")


def fetch_page(address: str) -> tuple[str, bytes] | None:
    """Return the suffix and the content of a page that a user names; None where there is none any more (404, 410).

    Links are not followed, and a redirection only on the same host.

    Raises:
        UserError: the address has a password, or it cannot be fetched within its bounds.
    """
    host = check_url(address).hostname
    if "@" in urlsplit(address).netloc:
        raise UserError(f"{shown(address)}: leave out the password; an index keeps it")
    transport = BoundedTransport(_PAGE_SECONDS, address=address)
    headers = {"User-Agent": "selfrag", "Accept-Encoding": ENCODINGS}
    url = address
    try:
        with httpx.Client(transport=transport, headers=headers) as client:
            for _ in range(_REDIRECTS):
                with client.stream("GET", url) as reply:
                    if reply.next_request is None:
                        return _page_of(reply, address)
                    url = str(reply.next_request.url)
                if urlsplit(url).hostname != host:
                    raise UserError(f"it has moved; name {url:.200}")
    except (httpx.HTTPError, ValueError) as error:
        why = str(error) or type(error).__name__
        raise UserError(f"{address}: cannot be fetched ({why:.200})") from error
    except UserError as error:
        raise UserError(f"{address}: {error}") from error
    raise UserError(f"{address}: too many redirects")


def _page_of(reply: httpx.Response, address: str) -> tuple[str, bytes] | None:
    """Return the suffix and the content of a reply; a type that says little gives way to the suffix of the address."""
    if reply.status_code in (404, 410):
        return None
    if reply.status_code != 200:
        raise UserError(f"the server answered {reply.status_code}")
    content = _beginning(reply, _MOST_REPLY + 1)
    if len(content) > _MOST_REPLY:
        raise UserError(f"more than {_MOST_REPLY:,} bytes")
    media = _media(reply)
    suffix = _KINDS.get(media) or guess_extension(media) or ""
    if suffix in ("", ".bin", ".txt"):
        suffix = Path(urlsplit(address).path).suffix or suffix
    return suffix, content


def _media(reply: httpx.Response) -> str:
    kind: str = reply.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _beginning(reply: httpx.Response, most: int) -> bytes:
    """Return the body, of which no more than so many bytes are kept, and hardly more are read or unfolded."""
    content = Content(reply.headers.get("content-encoding", ""), most)
    for part in reply.iter_raw():
        if not content.add(part):
            break
    return bytes(content)


def _hits(results: Any, k: int, url: str, snippet: str) -> list[Hit]:
    if not _is_list_of(dict, results):
        raise UserError("the web search answered no list of pages")
    kept: dict[str, Hit] = {}
    for row in results:
        address = row.get(url)
        if isinstance(address, str) and address.startswith(("http://", "https://")):
            texts = [row.get(name) for name in ("title", snippet)]
            texts = [text if isinstance(text, str) else "" for text in texts]
            kept.setdefault(address, Hit(address, *texts))
    return list(kept.values())[:k]


def open_http(text: str) -> RemoteRetriever:
    """Return the search server at `http:TEXT`."""
    return RemoteRetriever(f"http:{text}")


def open_https(text: str) -> RemoteRetriever:
    """Return the search server at `https:TEXT`."""
    return RemoteRetriever(f"https:{text}")


def open_searxng(text: str) -> WebRetriever:
    """Return web search by the SearXNG at the address TEXT."""
    return WebRetriever(f"searxng:{text}")


def open_google(text: str) -> WebRetriever:
    """Return web search by the Google engine TEXT."""
    return WebRetriever(f"google:{text}")
