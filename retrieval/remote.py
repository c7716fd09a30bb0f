"""Indexes that stand on a server of their own, as a package registers them under the scheme of their addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from retrieval.encoders import Encoder, EncoderCard
from retrieval.search import IndexRetriever


@dataclass(frozen=True, slots=True)
class RemoteCard:
    """What a remote index says of itself.

    Attributes:
        encoder: what its passages were encoded by.
        passages: how many it holds.
        columns: names of their columns.
        language: of its search by words; empty without.
        search: how it is searched, in words.
        values: all settings, ready for JSON; they tell one state of the index from another.
    """

    encoder: EncoderCard
    passages: int
    columns: Sequence[str]
    language: str
    search: str
    values: dict[str, Any]


class RemoteIndexes(Protocol):
    """The remote indexes of one kind of server, by their addresses: a module with these functions.

    Each raises a `UserError` in one line.
    """

    @staticmethod
    def open_index(
        address: str | Path,
        encoder: Encoder | str | Path | None,
        *,
        mode: str | None = None,
    ) -> IndexRetriever:
        """Return a retriever; `encoder` is that of the index, or where to load it."""

    @staticmethod
    def read_card(address: str | Path) -> RemoteCard:
        """Return what the index says of itself."""
