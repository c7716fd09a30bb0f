"""Collections of Milvus: their addresses, what they hold, and writing into them. A file of milvus-lite is one too."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from selfrag.interface import (
    ANALYZER,
    EncoderCard,
    Matrix,
    Passage,
    Row,
    Template,
    UserError,
    WordAnalyzer,
    require,
    user_path,
    validate,
)

T = TypeVar("T")
TOKEN = "MILVUS_TOKEN"  # noqa: S105 - the name of an environment variable
MOST_ROWS = 16_384
"""Rows that Milvus returns at most."""
# a `Path` makes one slash of two
_SERVER = re.compile(
    r"milvus(\+https)?:/{1,2}([\w.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?/([A-Za-z_]\w{0,254})",
    re.ASCII,
)
_FILE = re.compile(r"milvus:(.+\.db)(?:/([A-Za-z_]\w{0,254}))?", re.ASCII | re.DOTALL)
_PROPERTY, _FORMAT = "selfrag", f"selfrag-milvus-2-{ANALYZER}"
_MOST_BYTES = 65_535  # of a text
_BLOCK = 1024  # ids of a request
_SENT = 256  # rows of a request: with the longest texts it stays below the 64 MB that a server takes
_CONNECTING, _ANSWERING, PREPARING = 10, 120, 3_600  # seconds


@dataclass(frozen=True, slots=True)
class CollectionCard:
    """How the vectors and words of a collection were made; a property of the collection."""

    encoder: EncoderCard  # the encoder that made the vectors
    template: Template  # how passages and queries become texts
    language: str  # of the stems and stop words; empty for no search by words

    def word_analyzer(self) -> WordAnalyzer | None:
        """Return what makes terms of texts and queries; None without a search by words."""
        return WordAnalyzer(self.language) if self.language else None


class Collection:
    """A collection of passages. Safe to use from many threads.

    Args:
        address: `milvus://HOST:PORT/COLLECTION` (`milvus+https` for TLS), or `milvus:FILE.db` or
            `milvus:FILE.db/COLLECTION` for a file of milvus-lite. The environment variable MILVUS_TOKEN holds
            `USER:PASSWORD` or a key, if the server wants one.

    Attributes:
        address: of the collection.
        card: how it was made, after `load` or `create`.

    Raises:
        UserError: no such form, or nothing answers there.
    """

    card: CollectionCard

    def __init__(self, address: str | Path) -> None:
        self.address = str(address)
        self._token = os.environ.get(TOKEN, "")
        if "@" in self.address:
            raise UserError(
                f"an address of Milvus holds no user and password; put USER:PASSWORD into {TOKEN}"
            )
        self.is_file = False
        if match := _FILE.fullmatch(self.address):
            self.is_file = True
            uri, self.name = str(user_path(match[1])), match[2] or "passages"
            require("milvus_lite", extra="milvus")
        elif match := _SERVER.fullmatch(self.address):
            secure, host, port, self.name = match.groups("")
            uri = f"http{'s' if secure else ''}://{host}{port or ':19530'}"
            self.address = f"milvus{secure}://{host}{port}/{self.name}"
        else:
            raise UserError(
                f"{self.address!r:.120} is no address of a collection; give milvus://HOST:PORT/COLLECTION or"
                " milvus:FILE.db"
            )
        # they log what they raise, with the traceback
        for library in ("pymilvus", "milvus_lite", "grpc._common", "grpc._server"):
            logging.getLogger(library).setLevel(logging.CRITICAL)
        pymilvus = require("pymilvus", extra="milvus")
        with self.told():
            self._client = pymilvus.MilvusClient(
                uri, token=self._token, timeout=_CONNECTING
            )

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turn errors of Milvus, and replies that cannot be read, into one line, which never shows the token."""
        try:
            yield
        except UserError:
            raise
        except (
            Exception
        ) as error:  # of pymilvus, of gRPC, and what a strange reply makes of either
            message = getattr(error, "message", None)
            if not isinstance(message, str):
                message = f"no reply of Milvus ({type(error).__name__}: {error})"
            if "Open local milvus failed" in message and "dir:" not in message:
                message = (
                    "milvus-lite cannot open the file; another process may hold it,"
                    " or it is no file of milvus-lite"
                )
            if self._token:
                message = message.replace(self._token, "***")
            raise UserError(
                f"{self.address}: {' '.join(message.split()):.400}"
            ) from None  # its traceback could show the token

    def ask(
        self, method: str, *arguments: Any, timeout: int = _ANSWERING, **settings: Any
    ) -> Any:
        """Return what a method of the client says of the collection."""
        with self.told():
            return getattr(self._client, method)(
                self.name, *arguments, timeout=timeout, **settings
            )

    def load(self) -> None:
        """Make the collection ready, and read its card.

        Raises:
            UserError: there is none, or `selfrag index push` did not make it.
        """
        if not self.ask("has_collection"):
            raise UserError(
                f"{self.address}: no collection {self.name}; make it with: selfrag index push DIR {self.address}"
            )
        try:
            with self.told():
                properties = self.ask("describe_collection").get("properties", {})
                values = json.loads(str(properties.get(_PROPERTY, "{}")))
                is_ours = values.pop("format", None) == _FORMAT
            if not is_ours:
                raise UserError(
                    "it was not made by selfrag index push, or by an older version"
                )
            self.card = validate(CollectionCard, values, f"property {_PROPERTY}")
        except UserError as error:
            raise UserError(
                f"{self.address}: {error}; choose another collection"
            ) from error
        self.ask("load_collection", timeout=PREPARING)

    def create(self, encoder: EncoderCard, template: Template, language: str) -> None:
        """Make the collection if it is not there; see `CollectionCard`."""
        if not self.ask("has_collection"):
            with self.told():
                self._create(CollectionCard(encoder, template, language))
        self.load()
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

        def add_text(name: str, **settings: Any) -> None:
            schema.add_field(name, DataType.VARCHAR, max_length=_MOST_BYTES, **settings)

        add_text("id", is_primary=True)
        for name in ("title", "text", "digest"):
            add_text(name)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=card.encoder.dim)
        kind = "FLAT" if self.is_file else "AUTOINDEX"
        indexes.add_index("vector", metric_type="IP", index_type=kind)
        # stems of ours, since the analyzers differ between servers and milvus-lite
        if card.language:
            standard = {"type": "standard"}
            add_text("words", enable_analyzer=True, analyzer_params=standard)
            schema.add_field("bm25", DataType.SPARSE_FLOAT_VECTOR)
            schema.add_function(
                Function("bm25", FunctionType.BM25, ["words"], ["bm25"])
            )
            # pymilvus sends plain params one by one, which milvus-lite ignores; nested ones reach both as one object.
            indexes.add_index(
                "bm25",
                index_type="SPARSE_INVERTED_INDEX",
                metric_type="BM25",
                params={"params": {"bm25_k1": 1.2, "bm25_b": 0.75}},
            )
        self.ask(
            "create_collection",
            timeout=PREPARING,
            schema=schema,
            index_params=indexes,
            consistency_level="Strong",  # a passage that was removed is never found
            properties={_PROPERTY: json.dumps({"format": _FORMAT, **asdict(card)})},
        )

    def __len__(self) -> int:
        with self.told():
            rows = self.ask("query", filter="", output_fields=["count(*)"])
            return int(rows[0]["count(*)"])

    def rank(
        self, field: str, queries: Sequence[Any], k: int, where: str
    ) -> list[list[Passage]]:
        """Return the k (at most 16,384) best passages of each query, scores falling, equal ones by id.

        `field` is `vector`, or `bm25` with texts of stems as queries. `where` is an expression of Milvus, or empty.
        """
        rankings = []
        with self.told():
            results = self.ask(
                "search",
                list(queries),
                anns_field=field,
                limit=k,
                filter=where,
                output_fields=["title", "text", "metadata"],
            )
            for _, hits in zip(queries, results, strict=True):
                ranking = []
                for hit in hits:
                    # milvus-lite gives BM25 a minus sign, a server does not
                    score = float(hit["distance"])
                    score = abs(score) if field == "bm25" else score
                    if not math.isfinite(score):
                        raise ValueError(f"a score of {score}")
                    columns = hit["entity"]
                    title, text = _text(columns["title"]), _text(columns["text"])
                    metadata = dict(columns["metadata"])
                    identifier = _text(hit["id"])
                    passage = Passage(identifier, text, title, score, metadata)
                    ranking.append((-score, passage.id, passage))
                rankings.append([passage for *_, passage in sorted(ranking)])
        return rankings

    def metadata(self, where: str, limit: int) -> list[dict[str, Any]]:
        """Return the metadata of some of the passages that meet an expression of Milvus."""
        with self.told():
            rows = self.ask(
                "query", filter=where, output_fields=["metadata"], limit=limit
            )
            return [dict(row["metadata"]) for row in rows]

    def columns(self) -> list[str]:
        """Names of the metadata of the first 100 passages; Milvus keeps no list of them."""
        return sorted(set(chain.from_iterable(self.metadata('id != ""', 100))))

    def write(self, rows: Sequence[Row], vectors: Matrix) -> int:
        """Write passages, those that are there with the same content left out; returns how many were written."""
        analyzer = self.card.word_analyzer()
        known: dict[str, str] = {}
        for block in _blocks([row.passage.id for row in rows], _BLOCK):
            with self.told():
                hits = self.ask("query", ids=list(block), output_fields=["digest"])
                known |= {row["id"]: row["digest"] for row in hits}
        entities = []
        for row, vector in zip(rows, vectors, strict=True):
            passage, metadata = row.passage, dict(row.metadata)
            columns: dict[str, Any] = {
                "id": passage.id,
                "title": passage.title,
                "text": passage.text,
                "metadata": metadata,
            }
            stated = json.dumps(columns, sort_keys=True).encode()
            digest = hashlib.blake2b(stated, digest_size=16).hexdigest()
            if known.get(passage.id) == digest:
                continue
            if analyzer is not None:
                terms = analyzer.terms(f"{passage.title} {passage.text}")
                columns["words"] = " ".join(terms)
            entities.append(columns | {"digest": digest, "vector": vector})
        for sent in _blocks(entities, _SENT):
            self.ask("upsert", sent)
        return len(entities)

    def delete(self, ids: Sequence[str]) -> None:
        """Remove passages; unknown ids do not matter."""
        for block in _blocks(ids, _BLOCK):
            self.ask("delete", ids=list(block))


def _text(value: Any) -> str:
    """Return what must be text in a reply."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} in place of a text")
    return value


def _blocks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield a list in parts of a size; the last one may be shorter."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def literal(value: Any) -> str:
    """Return a value in an expression of Milvus. Quotes, backslashes and line ends of texts are escaped."""
    return json.dumps(value, ensure_ascii=False)
