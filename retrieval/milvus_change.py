"""Changing a collection of Milvus: an index copied into it, passages added and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from retrieval.checks import choice, whole
from retrieval.corpus import Corpus, Row
from retrieval.encoders import Encoder, checked_encode
from retrieval.encoding import BLOCK_ROWS
from retrieval.errors import UserError
from retrieval.index import OpenParts, encoder_of, open_parts
from retrieval.milvus import KINDS, Collection, in_blocks
from retrieval.passage import Passage
from retrieval.reading import user_path
from retrieval.vectors import Matrix


def push_index(
    directory: str | Path, address: str | Path, *, kind: str | None = None, progress: bool | None = None
) -> tuple[int, int]:
    """Copy the passages and vectors of an index into a collection of Milvus, which is made if it is not there.

    Passages that are there with the same content are not sent again, so an interrupted call is continued by the next
    one. Passages that were removed from the index are removed from the collection.

    Args:
        directory: the index.
        address: of the collection; see `Collection`.
        kind: of the vector index: `auto` lets Milvus choose, `flat` is exact, `ivf` is IVF with RaBitQ codes and int8
            vectors for rescoring (Milvus 2.6). None keeps it; a new collection is `auto`, or `flat` in a file.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Returns:
        The number of passages that were written, and of all passages of the collection.

    Raises:
        UserError: no such index, no Milvus at the address, or a collection of another encoder, language or kind.
    """
    choice("kind", kind or "auto", KINDS)
    manifest, parts = open_parts(user_path(directory))
    collection = Collection(address)
    collection.create(manifest.encoder, manifest.template, manifest.language, kind)
    written = collection.write(_stored(parts), manifest.rows - manifest.removed, progress)
    if parts.corpus.kept is not None:
        removed = {parts.corpus[row].id for row in np.flatnonzero(~parts.corpus.kept).tolist()}
        again = {parts.corpus[row].id for row in parts.corpus.rows_with(sorted(removed)).tolist()}
        collection.delete(sorted(removed - again))
    return written, len(collection)


def _stored(parts: OpenParts) -> Iterator[tuple[list[Row], Callable[[], Matrix]]]:
    """Blocks of the passages of an index that were not removed, and their vectors."""
    rows, kept, first = parts.corpus.live(), parts.corpus.kept, 0
    for vectors in parts.vectors:
        for start in range(0, len(vectors), BLOCK_ROWS):
            numbers = np.arange(start, min(start + BLOCK_ROWS, len(vectors)))
            if kept is not None:
                numbers = numbers[kept[first + numbers]]
            yield list(islice(rows, len(numbers))), partial(vectors.rows, numbers)
        first += len(vectors)


def add_to_collection(
    address: str | Path,
    passages: Iterable[Passage | Row],
    *,
    encoder: Encoder | str | Path | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> int:
    """Encode passages and add them to a collection of Milvus; a passage with the same id is replaced.

    Passages that are there with the same content are not encoded again, so an interrupted call is continued by the
    next one.

    Args:
        address: of a collection that `push_index` made.
        passages: with unique ids.
        encoder: the encoder of the collection, or where to load it; None loads it from where it was.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Returns:
        The number of passages that were added or replaced.

    Raises:
        UserError: a bad passage, another encoder, or no such collection.
    """
    whole("batch_size", batch_size)
    collection = Collection.open(address)
    card = collection.card
    loaded = encoder_of(f"{address}", card.encoder, encoder)

    def encoded(rows: Sequence[Row]) -> Matrix:
        texts = [card.template.of_passage(row.passage) for row in rows]
        return checked_encode(loaded, texts, batch_size)

    with TemporaryDirectory() as folder:  # a corpus checks every passage before the first is sent
        corpus = Corpus.build(passages, Path(folder) / "corpus")
        blocks = ((rows, partial(encoded, rows)) for rows in in_blocks(corpus.live(), BLOCK_ROWS))
        return collection.write(blocks, len(corpus), progress)


def remove_from_collection(address: str | Path, ids: Sequence[str]) -> int:
    """Remove passages from a collection of Milvus by id; returns their number.

    Raises:
        UserError: an id that is not there, and then nothing is removed; or no such collection.
    """
    collection = Collection.open(address)
    wanted = list(dict.fromkeys(ids))
    found = collection.get(wanted, [])
    missing = next((identifier for identifier in wanted if identifier not in found), None)
    if missing is not None:
        raise UserError(f"no passage {missing!r:.80} in {address}; nothing was removed")
    collection.delete(wanted)
    return len(wanted)
