"""Writes the index of words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from retrieval.passage import Passage
from retrieval.words import WordAnalyzer, _link, _schema

_HEAP = 64_000_000  # bytes that are collected before a piece of the index is written


def add_words(
    folder: Path,
    passages: Iterable[Passage],
    first: int,
    language: str,
    older: Path | None = None,
) -> None:
    """Write an index of words, or one with more passages than an `older` one, which stays as it is.

    The older one's files are linked, not copied, where the file system can.

    Args:
        folder: to write into; whatever it holds is removed.
        passages: in the order of their rows.
        first: row of the first passage.
        language: of the stems and stop words.
        older: the index that the passages are added to.
    """
    import tantivy

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in older.iterdir() if older is not None else ():
        if not file.name.endswith(".lock"):
            _link(file, folder / file.name)
    analyzer = WordAnalyzer(language)
    index = tantivy.Index(_schema(tantivy), path=str(folder), reuse=True)
    index.register_tokenizer("words", analyzer.tokenizer)
    writer = index.writer(heap_size=_HEAP, num_threads=1)
    for row, passage in enumerate(passages, start=first):
        document = tantivy.Document(
            body=[analyzer.prepare(f"{passage.title} {passage.text}")]
        )
        document.add_integer("row", row)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    _steady_names(folder, first)


def _steady_names(folder: Path, first: int) -> None:
    """Name the pieces of an index by their number, not at random: the same passages give the same files."""
    meta, managed = folder / "meta.json", folder / ".managed.json"
    values = json.loads(meta.read_text(encoding="utf-8"))
    known = {segment["segment_id"].replace("-", "") for segment in values["segments"]}
    names = {file.name for file in folder.iterdir() if file.name[:32] in known}
    for file in folder.iterdir():
        if file not in (meta, managed) and file.name not in names:
            file.unlink()  # a lock, or a piece that was merged into another
    for number, segment in enumerate(values["segments"]):
        old = segment["segment_id"].replace("-", "")
        new = f"{first:016x}{number:016x}"
        if not old.startswith("00000"):  # else it has been here before
            segment["segment_id"] = str(UUID(new))
            for name in sorted(names):
                if name.startswith(old):
                    (folder / name).rename(folder / name.replace(old, new))
    names = {file.name for file in folder.iterdir()} - {managed.name}
    for file, content in ((meta, values), (managed, sorted(names))):
        file.unlink()  # tantivy wrote it for its own user only
        file.write_text(json.dumps(content), encoding="utf-8")
