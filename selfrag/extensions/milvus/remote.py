"""Collections of Milvus as remote indexes, for every command that takes the address of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from retrieval.corpus import Row
from retrieval.encoders import Encoder
from retrieval.passage import Passage
from retrieval.remote import RemoteCard
from selfrag.extensions.milvus.collections import (
    Collection,
    MilvusRetriever,
    add_to_collection,
    open_milvus,
    remove_from_collection,
)


class MilvusIndexes:
    """Implements `retrieval.remote.RemoteIndexes`."""

    def open(
        self, address: str | Path, encoder: Encoder | str | Path | None, *, mode: str | None = None
    ) -> MilvusRetriever:
        """Return a retriever over a collection."""
        return open_milvus(address, encoder, mode=mode)

    def card(self, address: str | Path) -> RemoteCard:
        """Return what a collection says of itself."""
        collection = Collection.open(address)
        card = collection.card
        passages, columns = len(collection), ["id", "title", *collection.columns()]
        values = {"passages": passages, "columns": columns, **asdict(card)}
        return RemoteCard(card.encoder, passages, columns, card.language, card.analyzer, f"Milvus, {card.kind}", values)

    def add(
        self,
        address: str | Path,
        passages: Iterable[Passage | Row],
        *,
        encoder: Encoder | str | Path | None,
        batch_size: int,
    ) -> int:
        """Encode and add passages to a collection."""
        return add_to_collection(address, passages, encoder=encoder, batch_size=batch_size)

    def remove(self, address: str | Path, ids: Sequence[str]) -> int:
        """Remove passages from a collection."""
        return remove_from_collection(address, ids)


INDEXES = MilvusIndexes()
