"""Retrievers behind a web address: servers that speak Search-R1's `/retrieve` or massive-serve's `/search`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from retrieval.checks import number, web_address, whole
from retrieval.errors import UserError
from retrieval.passage import Passage

_MOST = 64 << 20
"""Bytes of a reply."""


def shown(address: str) -> str:
    """An address as messages show it, without a password."""
    return address.rpartition("@")[2][:120]


def answered(client: httpx.Client, method: str, address: str, *, hint: str = "", **request: Any) -> dict[str, Any]:
    """The JSON object that a search server answers.

    Args:
        client: asks it.
        method: of HTTP.
        address: of the server; what `params` adds to it is not printed.
        hint: what to do where the answer is no JSON.
        request: further arguments of `httpx.Client.stream`.

    Raises:
        UserError: it cannot be reached, refuses, or answers something else or too much.
    """
    name = shown(address)
    try:
        with client.stream(method, address, **request) as reply:
            content = bytearray()
            for part in reply.iter_bytes():
                content += part
                if len(content) > _MOST:
                    raise UserError(f"{name} answered more than {_MOST:,} bytes")
    except httpx.HTTPError as error:
        raise UserError(f"{name} cannot be searched: {type(error).__name__}") from error
    if reply.status_code != 200:
        raise UserError(f"{name} answered {reply.status_code}: {content[:200].decode(errors='replace')}")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} did not answer in JSON{hint}") from error
    if not isinstance(found, dict):
        raise UserError(f"{name} answered {type(found).__name__}, not an object")
    return found


class RemoteRetriever:
    """Search by a server. Safe to call from many threads.

    Args:
        url: address that ends in `/retrieve` (queries, topk, return_scores) or in `/search` (query, n_docs).
        timeout: seconds for one search.
        headers: sent with each request, such as `{"Authorization": "Bearer .."}`.

    Raises:
        UserError: the address is none of these.
    """

    def __init__(self, url: str, *, timeout: float = 60.0, headers: Mapping[str, str] | None = None) -> None:
        web_address(url, "http://127.0.0.1:8000/retrieve")
        self._url = url
        self._kind = urlsplit(url).path.rstrip("/").rpartition("/")[2]
        if self._kind not in ("retrieve", "search"):
            raise UserError(f"url {self._shown!r:.80} ends neither in /retrieve nor in /search; add one of them")
        number("timeout", timeout, above=True)
        self._client = httpx.Client(timeout=timeout, headers=dict(headers or {}))

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """For each query up to `k` passages, in the order of the server.

        Raises:
            UserError: the server cannot be reached, refuses, or answers something else.
        """
        whole("k", k, 0)
        if not queries or k == 0:
            return [[] for _ in queries]
        if self._kind == "retrieve":
            found = self._asked({"queries": list(queries), "topk": k, "return_scores": True})
            lists: Any = found.get("result")
        else:
            found = self._asked({"query": list(queries), "n_docs": k})
            results = found.get("results")
            lists = list(_rows(results)) if isinstance(results, dict) else None
        if not isinstance(lists, list) or len(lists) != len(queries) or not all(isinstance(one, list) for one in lists):
            raise UserError(f"{self._shown} did not answer with a list for each of {len(queries)} queries")
        return [[self._passage(one) for one in given[:k]] for given in lists]

    @property
    def _shown(self) -> str:
        return shown(self._url)

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return answered(self._client, "POST", self._url, json=body)

    def _passage(self, given: Any) -> Passage:
        """A passage of `{"document": {"contents": ..}, "score": ..}`; the first line of the contents is the title."""
        given = given if isinstance(given, dict) else {}
        document = given.get("document", given)
        contents = document.get("contents") if isinstance(document, dict) else None
        if not isinstance(contents, str):
            raise UserError(f"{self._shown} answered a passage without contents")
        title, newline, text = contents.partition("\n")
        score = given.get("score")
        return Passage(
            str(document.get("id", contents[:80])),
            text if newline else contents,
            title.strip().removeprefix('"').removesuffix('"') if newline else "",
            score if isinstance(score, int | float) else None,
        )


def _rows(results: Mapping[str, Any]) -> Iterator[Any]:
    """The lists of massive-serve's results in the shape of `/retrieve`."""
    columns = [results.get(name) for name in ("IDs", "passages", "scores")]
    if not all(isinstance(column, list) for column in columns):
        return
    for found in zip(*columns, strict=False):
        if not all(isinstance(one, list) for one in found):
            return
        yield [{"document": {"id": i, "contents": text}, "score": s} for i, text, s in zip(*found, strict=False)]
