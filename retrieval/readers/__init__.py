"""User files in, rows out: one reader a format, chosen by the file's suffix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from retrieval.errors import UserError
from retrieval.readers.documents import document_names, read_document
from retrieval.readers.jsonl import read_jsonl
from retrieval.readers.row import Place, Row
from retrieval.readers.tables import read_parquet, read_separated
from retrieval.reading import regular_file, user_path
from retrieval.splitting import Splitting, sentence_finder

__all__ = ["Place", "Row", "read_files"]

_TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
_DOCUMENTS = (".txt", ".md", ".markdown")


def _kind(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _TABLES or suffix in _DOCUMENTS:
        if suffix == ".parquet" and path.suffix == ".gz":
            raise UserError(f"{path}: unpack it first; Parquet compresses by itself")
        return suffix
    known = " ".join((*_TABLES, *_DOCUMENTS))
    raise UserError(f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)")


def read_files(files: Sequence[str | Path], splitting: Splitting | None = None) -> Iterator[Row]:
    """Rows of all files in order. Tables give their rows as they are, documents are split into passages.

    Args:
        files: `.jsonl`, `.csv`, `.tsv`, `.parquet` (columns id, title, text), `.txt`, `.md`; all but Parquet also
            with `.gz`.
        splitting: how documents are cut; tables are never cut.

    Raises:
        UserError: no files, an unknown suffix or a missing file (all checked before the first row), or a bad row.
    """
    if isinstance(files, str | Path):
        files = [files]
    paths = [user_path(file) for file in files]
    if not paths:
        raise UserError("no files to read; name at least one")
    kinds = [_kind(path) for path in paths]
    for path in paths:
        regular_file(path)
    return _rows(paths, kinds, splitting or Splitting())


def _rows(paths: Sequence[Path], kinds: Sequence[str], splitting: Splitting) -> Iterator[Row]:
    names = document_names(paths)
    find = sentence_finder(splitting.sentences) if any(kind in _DOCUMENTS for kind in kinds) else None
    for path, name, kind in zip(paths, names, kinds, strict=True):
        before = None
        for before in (
            read_document(path, name, splitting, find) if find and kind in _DOCUMENTS else _TABLES[kind](path)
        ):
            yield before
        if before is None:
            raise UserError(f"{path}: no rows in it")
