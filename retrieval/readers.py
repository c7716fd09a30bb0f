"""From the files of a user to rows: tables as they are, documents cut into passages."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.corpus import Place, Row
from retrieval.documents import READERS
from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.reading import regular_file, user_path
from retrieval.splitting import SentenceFinder, Splitting, sentence_finder, split
from retrieval.tables import TABLES

_PACKED = (".parquet", ".pdf", ".docx")
"""Formats that compress by themselves."""


def _kind(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES or suffix in READERS:
        if suffix in _PACKED and path.suffix == ".gz":
            raise UserError(f"{path}: unpack it first; {suffix[1:].capitalize()} compresses by itself")
        return suffix
    known = " ".join((*TABLES, *READERS))
    raise UserError(f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)")


def read_files(files: Sequence[str | Path], splitting: Splitting | None = None) -> Iterator[Row]:
    """Rows of all files in order. Tables give their rows as they are, documents are split into passages.

    Args:
        files: `.jsonl`, `.csv`, `.tsv`, `.parquet` (columns id, title, text), `.txt`, `.md`, `.html`, `.pdf`, `.docx`;
            texts also with `.gz`.
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
    find = sentence_finder(splitting.sentences) if any(kind in READERS for kind in kinds) else None
    for path, name, kind in zip(paths, names, kinds, strict=True):
        before = None
        for before in (
            read_document(path, kind, name, splitting, find) if find and kind in READERS else TABLES[kind](path)
        ):
            yield before
        if before is None:
            raise UserError(f"{path}: no rows in it")


_SETTLED = 2.0  # seconds; a file that changed later than this ago may change again without its times telling


def files_fingerprint(files: Sequence[str | Path], splitting: Splitting | None = None) -> str:
    """Fingerprint of files by name, size and times of change, without reading them; empty where that is not certain."""
    stated = []
    for file in [files] if isinstance(files, str | Path) else files:
        path = user_path(file).resolve()
        try:
            found = path.stat()
        except OSError:
            return ""
        if time.time() - max(found.st_mtime, found.st_ctime) < _SETTLED:
            return ""
        stated.append((str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return hashlib.blake2b(repr((stated, splitting or Splitting())).encode(), digest_size=16).hexdigest()


_WITH_LINES = (".txt", ".md", ".markdown")


def document_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each document, unique among `paths`: the stem; where two are alike, with folders."""
    resolved = [path.resolve() for path in paths]
    twice = next((path for path, count in Counter(resolved).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is given twice")
    names = [path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name for path in resolved]
    for depth in range(1, max((len(path.parts) for path in resolved), default=0)):
        counts = Counter(names)
        names = [
            "/".join(path.parts[-depth:]) if counts[name] > 1 else name
            for path, name in zip(resolved, names, strict=True)
        ]
    return names


def read_document(path: Path, kind: str, name: str, splitting: Splitting, find: SentenceFinder) -> Iterator[Row]:
    """Passages of one document, with ids `name-1`, `name-2` and so on in reading order; none crosses a section.

    `kind` is its suffix, one of `READERS`. The name is the title, too, where there are no headings.
    """
    document = READERS[kind](path, name)
    text = document.text
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    number, line, seen = 0, 1, 0
    for section in document.sections:
        for start, end in split(text[section.start : section.end], splitting, find):
            number += 1
            begin = section.start + start
            line, seen = line + text.count("\n", seen, begin), begin
            page = section.metadata.get("page")
            if page is not None:
                place = Place(str(path), int(page), "page")
            elif kind in _WITH_LINES:
                place = Place(str(path), line)
            else:
                place = Place(str(path), number, "passage")
            passage = Passage(f"{name}-{number}", text[begin : section.start + end], section.title)
            yield Row(passage, place, section.metadata)
