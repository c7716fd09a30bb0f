"""Collections of Milvus: their addresses, what they hold, and writing into them. A file of milvus-lite is one too."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.corpus import Row
from retrieval.encoders import BLOCK_ROWS, EncoderCard, Template
from retrieval.search import Ranking
from retrieval.vectors import Matrix
from retrieval.words import ANALYZER, WordAnalyzer
from selfrag.interface import (
    Passage,
    Progress,
    UserError,
    check_choice,
    check_int,
    count_of,
    require,
    user_path,
    validate,
)

FORM = "milvus://HOST:PORT/COLLECTION or milvus:FILE.db"
TOKEN = "MILVUS_TOKEN"  # noqa: S105 - the name of an environment variable
MOST_ROWS = 16_384
"""Rows that Milvus returns at most."""
_SERVER = re.compile(
    r"milvus(\+https)?:/{1,2}([\w.-]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?/([A-Za-z_]\w{0,254})",
    re.ASCII,
)
_FILE = re.compile(r"milvus:(.+\.db)(?:/([A-Za-z_]\w{0,254}))?", re.ASCII | re.DOTALL)
# a `Path` makes one slash of two
_PATH_SLASH = re.compile(r"^(milvus(?:\+https)?:)/(?=[^/]+/\w+$)")
# columns that a condition can name: nothing that could end a quoted text
_NAME = re.compile(r"[\w .:/@+-]+")
_PROPERTY, _FORMAT = "selfrag", "selfrag-milvus-1"
KINDS: dict[str, dict[str, Any]] = {
    "auto": {"index_type": "AUTOINDEX"},
    "flat": {"index_type": "FLAT"},
}
_MOST_BYTES = 65_535  # of a text
_SENT = 256  # rows of a request: with the longest texts it stays below the 64 MB that a server takes
_CONNECTING, _ANSWERING, _PREPARING = 10, 120, 3_600  # seconds


@dataclass(frozen=True, slots=True)
class CollectionCard:
    """How the vectors and words of a collection were made; a property of the collection."""

    encoder: EncoderCard  # the encoder that made the vectors
    template: Template  # how passages and queries become texts
    language: str  # of the stems and stop words; empty for no search by words
    kind: str  # of the vector index: `auto` of a server, `flat` of a file
    analyzer: int = 1  # version of the rules that made the words; `retrieval.words.ANALYZER` in a new collection

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_int("analyzer", self.analyzer, 1, ANALYZER)

    def word_analyzer(self) -> WordAnalyzer:
        """Return what makes terms of texts and queries."""
        return WordAnalyzer(self.language, self.analyzer)


class Collection:
    """A collection of passages. Safe to use from many threads.

    Args:
        address: `milvus://HOST:PORT/COLLECTION` (`milvus+https` for TLS), or `milvus:FILE.db` or
            `milvus:FILE.db/COLLECTION` for a file of milvus-lite. The environment variable MILVUS_TOKEN holds
            `USER:PASSWORD` or a key, if the server wants one.

    Attributes:
        address: of the collection.
        card: how it was made, after `open` or `create`.

    Raises:
        UserError: no such form, or nothing answers there.
    """

    card: CollectionCard

    def __init__(self, address: str | Path) -> None:
        self._token = os.environ.get(TOKEN, "")
        uri, self._name = _parsed(str(address))
        self.address = _PATH_SLASH.sub(r"\1//", str(address))
        self.is_file = uri.endswith(".db")
        pymilvus = require("pymilvus", extra="milvus")
        grpc = require("grpc", extra="milvus")
        if self.is_file:
            require("milvus_lite", extra="milvus")
        # they log what they raise, with the traceback
        for library in (
            "pymilvus",
            "milvus_lite",
            "grpc._common",
            "grpc._server",
        ):
            logging.getLogger(library).setLevel(logging.CRITICAL)
        self._error: type[Exception] = pymilvus.MilvusException
        self._refusal: type[Any] = grpc.RpcError
        with self._told():
            self._client = pymilvus.MilvusClient(
                uri, token=self._token, timeout=_CONNECTING
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of Milvus, and replies that cannot be read, into one line, which never shows the token."""
        try:
            yield
        except UserError:
            raise
        except (
            Exception
        ) as error:  # of pymilvus, of gRPC, and what a strange reply makes of either
            if isinstance(error, self._error):
                message = str(getattr(error, "message", error))
            elif isinstance(error, self._refusal):
                message = f"{error.code().name}: {error.details()}"
            else:
                message = f"no reply of Milvus ({type(error).__name__}: {error})"
            if "Open local milvus failed" in message and "dir:" not in message:
                message = (
                    "milvus-lite cannot open the file; another process may hold it,"
                    " or it is no file of milvus-lite"
                )
            if self._token:
                message = message.replace(self._token, "***")
            raise UserError(
                f"{self.address}: {message:.400}"
            ) from None  # its traceback could show the token

    def _ask(
        self,
        method: str,
        *arguments: Any,
        timeout: int | None = _ANSWERING,
        **settings: Any,
    ) -> Any:
        """Return what a method of the client says of the collection."""
        with self._told():
            return getattr(self._client, method)(
                self._name, *arguments, timeout=timeout, **settings
            )

    def exists(self) -> bool:
        """Return whether there is such a collection."""
        return bool(self._ask("has_collection"))

    @classmethod
    def open(cls, address: str | Path) -> Collection:
        """Return a collection that is there.

        Raises:
            UserError: there is none, or `selfrag index push` did not make it.
        """
        collection = cls(address)
        collection._load()
        return collection

    def _load(self) -> None:
        if not self.exists():
            raise UserError(
                f"{self.address}: no collection {self._name}; make it with: selfrag index push DIR {self.address}"
            )
        try:
            with self._told():
                properties = self._ask("describe_collection").get("properties", {})
                stated = str(properties.get(_PROPERTY, "null"))
            values = json.loads(stated)
            if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
                raise UserError(
                    f"collection {self._name} was not made by selfrag index push"
                )
            self.card = validate(
                CollectionCard, values, f"property {_PROPERTY} of {self._name}"
            )
        except (ValueError, RecursionError, UserError) as error:
            raise UserError(
                f"{self.address}: {error}; choose another collection"
            ) from error
        self._ask("load_collection", timeout=_PREPARING)

    def create(self, encoder: EncoderCard, template: Template, language: str) -> None:
        """Make the collection if it is not there; see `CollectionCard`."""
        if not self.exists():
            with self._told():
                kind = "flat" if self.is_file else "auto"
                self._create(
                    CollectionCard(encoder, template, language, kind, ANALYZER)
                )
        self._load()
        card = self.card
        if card.encoder.identity() != encoder.identity() or card.template != template:
            raise UserError(
                f"{self.address} was filled with another encoder or template: {card.encoder.name!r} "
                f"({card.encoder.fingerprint:.40}), not {encoder.name!r} ({encoder.fingerprint:.40}); "
                "choose another collection"
            )
        if card.language != language:
            raise UserError(
                f"{self.address} has language {card.language or 'none'}, not {language or 'none'};"
                " choose another collection"
            )

    def _create(self, card: CollectionCard) -> None:
        from pymilvus import DataType, Function, FunctionType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        indexes = self._client.prepare_index_params()
        schema.add_field(
            "id", DataType.VARCHAR, is_primary=True, max_length=_MOST_BYTES
        )
        # a body is the title, a space, and the text
        for name in (
            "title",
            "body",
            "digest",
        ):
            schema.add_field(name, DataType.VARCHAR, max_length=_MOST_BYTES)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=card.encoder.dim)
        indexes.add_index("vector", metric_type="IP", **KINDS[card.kind])
        # stems of ours, since the analyzers differ between servers and milvus-lite
        if card.language:
            schema.add_field(
                "words",
                DataType.VARCHAR,
                max_length=_MOST_BYTES,
                enable_analyzer=True,
                analyzer_params={"type": "standard"},
            )
            schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)
            schema.add_function(
                Function("bm25", FunctionType.BM25, ["words"], ["bm25"])
            )
            # pymilvus sends plain params one by one, which milvus-lite ignores; nested ones reach both as one object.
            bm25 = {"params": {"bm25_k1": 1.2, "bm25_b": 0.75}}
            indexes.add_index(
                "bm25",
                index_type="SPARSE_INVERTED_INDEX",
                metric_type="BM25",
                params=bm25,
            )
        stated = json.dumps({"format": _FORMAT, **asdict(card)})
        self._ask(
            "create_collection",
            timeout=_PREPARING,
            schema=schema,
            index_params=indexes,
            consistency_level="Strong",  # a passage that was removed is never found
            properties={_PROPERTY: stated},
        )

    def __len__(self) -> int:
        with self._told():
            rows = self._ask("query", filter="", output_fields=["count(*)"])
            return int(rows[0]["count(*)"])

    def rank(
        self, field: str, queries: Sequence[Any], k: int, where: str
    ) -> list[Ranking[str]]:
        """Ids and scores of the k (at most 16,384) best passages of each query, scores falling, equal ones by id.

        `field` is `vector`, or `bm25` with texts of stems as queries. `where` is an expression of Milvus, or empty.
        """
        scored = []
        with self._told():
            results = self._ask(
                "search",
                list(queries),
                anns_field=field,
                limit=k,
                filter=where,
            )
            for _, hits in zip(queries, results, strict=True):
                pairs = [(_text(hit["id"]), _finite(hit["distance"])) for hit in hits]
                # milvus-lite gives BM25 a minus sign, a server does not.
                if field == "bm25":
                    pairs = [(identifier, abs(score)) for identifier, score in pairs]
                scored.append(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
        return scored

    def get(
        self, ids: Iterable[str], columns: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the columns of some passages by id; unknown ids are left out."""
        rows: dict[str, dict[str, Any]] = {}
        for block in in_blocks(ids, BLOCK_ROWS):
            rows |= {
                row["id"]: row
                for row in self.rows_where(in_list("id", block), columns, len(block))
            }
        return rows

    def rows_where(
        self, where: str, columns: Sequence[str], limit: int
    ) -> list[dict[str, Any]]:
        """Return the columns of some of the passages that meet an expression of Milvus."""
        names = ["id", *columns]
        with self._told():
            rows = self._ask("query", filter=where, output_fields=names, limit=limit)
            return [_checked_row(row, names) for row in rows]

    def passages(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Passages by id; unknown ids are left out."""
        rows = self.get(ids, ["title", "body", "metadata"])
        return {
            identifier: Passage(
                identifier,
                row["body"][len(row["title"]) + 1 :],
                row["title"],
                None,
                row["metadata"],
            )
            for identifier, row in rows.items()
        }

    def columns(self) -> list[str]:
        """Names of the metadata of the first 100 passages; Milvus keeps no list of them."""
        rows = self.rows_where('id != ""', ["metadata"], 100)
        return sorted({name for row in rows for name in row["metadata"]})

    def write(
        self,
        blocks: Iterable[tuple[list[Row], Callable[[], Matrix]]],
        total: int,
        progress: bool | None,
    ) -> int:
        """Write passages; those that are there with the same content are skipped, those with another are replaced.

        `blocks` are rows, and a function that gives their vectors. Returns how many were written.
        """
        analyze = self.card.word_analyzer().terms if self.card.language else None
        written = 0
        with Progress(self._name, "passage", total, show=progress) as bar:
            for rows, vectors_of in blocks:
                there = self.get([row.passage.id for row in rows], ["digest"])
                digests = [_digest(row) for row in rows]
                new = [
                    n
                    for n, row in enumerate(rows)
                    if there.get(row.passage.id, {}).get("digest") != digests[n]
                ]
                vectors = vectors_of() if new else np.zeros((0, 0), np.float32)
                for some in in_blocks(new, _SENT):
                    entities = [
                        _entity(rows[n], analyze)
                        | {"digest": digests[n], "vector": vectors[n]}
                        for n in some
                    ]
                    self._ask("upsert", entities)
                written += len(new)
                bar.advance(len(rows))
        if written:
            self._ask("flush", timeout=_PREPARING)
        return written

    def delete(self, ids: Sequence[str]) -> None:
        """Remove passages; unknown ids do not matter."""
        for block in in_blocks(ids, BLOCK_ROWS):
            self._ask("delete", filter=in_list("id", block))


def _checked_row(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return columns of a row of a reply."""
    values: dict[str, Any] = {}
    for name in names:
        value = row[name]
        values[name] = dict(value) if name == "metadata" else _text(value)
    return values


def _text(value: Any) -> str:
    """Return what must be text in a reply."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} in place of a text")
    return value


def _finite(value: Any) -> float:
    """Return what must be a number in a reply."""
    if not math.isfinite(value):
        raise ValueError(f"a score of {value}")
    return float(value)


def _parsed(address: str) -> tuple[str, str]:
    """Return what pymilvus connects to, and the name of the collection."""
    if "@" in address:
        raise UserError(
            f"an address of Milvus holds no user and password; put USER:PASSWORD into {TOKEN}"
        )
    if match := _FILE.fullmatch(address):
        return str(user_path(match[1])), match[2] or "passages"
    if match := _SERVER.fullmatch(address):
        return (
            f"{'https' if match[1] else 'http'}://{match[2]}:{match[3] or 19530}",
            match[4],
        )
    raise UserError(f"{address!r:.120} is no address of a collection; give {FORM}")


def literal(value: str | int | float | bool) -> str:
    """Return a value in an expression of Milvus. Quotes, backslashes and line ends of a text are escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        + '"'
    )


def in_list(column: str, values: Iterable[str]) -> str:
    """Return an expression of Milvus: a column holds one of some texts."""
    return f"{column} in [{', '.join(map(literal, values))}]"


def in_blocks(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Values in lists of a size; the last one may be shorter."""
    left = iter(values)
    while block := list(islice(left, size)):
        yield block


def _digest(row: Row) -> str:
    passage = row.passage
    values = [passage.id, passage.title, passage.text, sorted(row.metadata.items())]
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def _entity(row: Row, analyze: Callable[[str], list[str]] | None) -> dict[str, Any]:
    passage = row.passage
    body = f"{passage.title} {passage.text}"
    texts = {"id": passage.id, "title": passage.title, "body": body}
    if analyze is not None:
        texts["words"] = " ".join(analyze(body))
    for name, text in [*texts.items(), ("metadata", json.dumps(dict(row.metadata)))]:
        if len(text.encode()) > _MOST_BYTES:
            raise UserError(
                f"passage {passage.id!r:.80}: its {name} has"
                f" {count_of(len(text.encode()), 'bytes')}; Milvus holds {_MOST_BYTES}; "
                "split it"
            )
    return {**texts, "metadata": dict(row.metadata)}
