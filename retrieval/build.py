"""Building an index: encode passages, resumable, and put the directory in place all at once."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.atomic import locked_directory, publish, write_json, writing
from retrieval.checks import whole
from retrieval.corpus import Corpus, Row, check_replaceable
from retrieval.encoders import Encoder, Template, checked_encode, load_encoder
from retrieval.errors import UserError
from retrieval.index import CORPUS, VECTORS, IndexManifest, building_directory, load_manifest, open_index
from retrieval.manifests import MANIFEST, sizes
from retrieval.passage import Passage
from retrieval.readers import files_fingerprint, read_files
from retrieval.reading import read_json, user_path
from retrieval.search import DenseRetriever
from retrieval.splitting import Splitting

_PLAN, _JOURNAL = "plan.json", "journal.json"


def build_index(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    splitting: Splitting | None = None,
    template: Template | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> DenseRetriever:
    """Index the user's files; see `index_passages` for how, and `read_files` for the formats.

    Args:
        files: tables with id, title and text, and documents, which are split into passages.
        out: directory of the index.
        encoder: an encoder, or the directory or hub name of one.
        splitting: word budget and overlap for documents.
        template: how passages and queries become texts for the encoder.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.

    Raises:
        UserError: a bad file or row (by file and line), a bad encoder, or a full disk.
    """
    inputs = files_fingerprint(files, splitting)
    return index_passages(
        read_files(files, splitting),
        out,
        encoder=encoder,
        template=template,
        batch_size=batch_size,
        progress=progress,
        inputs=inputs,
    )


def index_passages(
    passages: Iterable[Passage | Row],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    template: Template | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
    inputs: str = "",
) -> DenseRetriever:
    """Index passages. Nothing appears at `out` before all is done; an interrupted call is continued by the next one.

    Where `out` already holds the index of these very passages with this encoder, it is opened and nothing is encoded.

    Args:
        passages: in the order of their rows, with unique ids.
        out: a new directory, or that of an older index, which is replaced.
        encoder: an encoder, or the directory or hub name of one.
        template: how passages and queries become texts for the encoder.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.
        inputs: fingerprint of where the passages come from. Passages that an earlier call read from the same are not
            read again.

    Raises:
        UserError: a bad passage, a bad encoder, a full disk, or another process that builds the same index.
    """
    whole("batch_size", batch_size)
    target = Path(os.path.abspath(user_path(out)))  # noqa: PTH100 - resolve() would follow a link and replace what it points to
    check_replaceable(target, {CORPUS, VECTORS, MANIFEST})
    encoder = load_encoder(encoder)
    template = template or Template()
    with locked_directory(building_directory(target)) as building:
        draft = building / "draft"
        _sweep(building)
        built = _unchanged(target, inputs, encoder, template) if inputs else None
        if built is None:
            try:
                corpus = _corpus_of(inputs, building) or Corpus.build(passages, draft / CORPUS)
            except BaseException:
                if not (draft / VECTORS).exists():
                    shutil.rmtree(building, ignore_errors=True)
                raise
            plan = IndexManifest(len(corpus), corpus.digest, encoder.card, template, inputs=inputs)
            built = _built(target, plan, encoder)
        if built is None:
            _keep_vectors_of(plan, building)
            files = draft / VECTORS, building / _JOURNAL
            encode_corpus(corpus, encoder, plan.template, *files, batch_size=batch_size, progress=progress)
            with writing(target):
                write_json(draft / MANIFEST, replace(plan, files=sizes(draft)).as_dict())
                publish(draft, target)
        shutil.rmtree(building, ignore_errors=True)
    return built or open_index(target, encoder)


def _unchanged(target: Path, inputs: str, encoder: Encoder, template: Template) -> DenseRetriever | None:
    """The index at `target` if it was made of the same files in the same way; the files are not read."""
    try:
        manifest = load_manifest(target)
        same = replace(manifest, encoder=encoder.card, template=template, inputs=inputs)
        found = (manifest.inputs, manifest.identity()) == (same.inputs, same.identity())
        return open_index(target, encoder) if found else None
    except UserError:
        return None


def _corpus_of(inputs: str, building: Path) -> Corpus | None:
    """The passages that an unfinished build has read from the same files."""
    try:
        same = inputs and read_json(building / _PLAN)["inputs"] == inputs
        return Corpus.open(building / "draft" / CORPUS) if same else None
    except (UserError, KeyError, TypeError):
        return None


def _sweep(building: Path) -> None:
    """Remove temporary files of a process that was killed."""
    for entry in [*building.glob(".*.partial"), *building.glob("draft/.*.partial"), *building.glob("draft/.*.old")]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _built(target: Path, plan: IndexManifest, encoder: Encoder) -> DenseRetriever | None:
    """The index at `target` if it is sound and is what was asked for."""
    try:
        manifest = load_manifest(target)
        if manifest.identity() != plan.identity():
            return None
        if plan.inputs not in ("", manifest.inputs):
            write_json(target / MANIFEST, replace(manifest, inputs=plan.inputs).as_dict())
        return open_index(target, encoder)
    except UserError:  # missing, half-written, damaged or older: to be replaced
        return None


def _keep_vectors_of(plan: IndexManifest, building: Path) -> None:
    """Throw away what an interrupted build of other passages or with another encoder has left."""
    wanted = plan.identity()
    try:
        left = read_json(building / _PLAN)
    except UserError:
        left = {}
    if {**left, "inputs": ""} != {**wanted, "inputs": ""}:
        (building / _JOURNAL).unlink(missing_ok=True)
    write_json(building / _PLAN, {**wanted, "inputs": plan.inputs})


class GrowingMatrix:
    """Append-only float32 matrix [rows, dim] in a `.npy` file.

    Rows that the journal does not vouch for are cut off on opening, so a torn write is written again, not kept.

    Args:
        file: the matrix; one of the same shape that is there is continued.
        journal: how many of its rows are safe.
        rows: rows of the finished matrix.
        dim: values of a row.

    Attributes:
        done: rows on disk.
    """

    def __init__(self, file: Path, journal: Path, rows: int, dim: int) -> None:
        self._file, self._journal = file, journal
        self._row_bytes = 4 * dim
        self._header = _header(rows, dim)
        self.done = self._safe_rows(rows)
        with writing(file):
            if self.done == 0:
                file.write_bytes(self._header)
            else:
                os.truncate(file, self._end(self.done))

    def append(self, vectors: NDArray[np.float32]) -> None:
        """Add rows [n, dim]; when this returns they are on disk.

        Raises:
            UserError: the disk is full; the rows before are safe.
        """
        with writing(self._file):
            with self._file.open("r+b") as file:
                file.seek(self._end(self.done))
                file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
                file.flush()
                os.fsync(file.fileno())
            write_json(self._journal, {"rows": self.done + len(vectors)})
        self.done += len(vectors)

    def _end(self, rows: int) -> int:
        return len(self._header) + rows * self._row_bytes

    def _safe_rows(self, rows: int) -> int:
        try:
            claimed = int(read_json(self._journal)["rows"])
            with self._file.open("rb") as file:
                intact = file.read(len(self._header)) == self._header
            size = self._file.stat().st_size
        except (UserError, OSError, ValueError, KeyError, TypeError):
            return 0
        return claimed if intact and 0 <= claimed <= rows and size >= self._end(claimed) else 0


def _header(rows: int, dim: int) -> bytes:
    buffer = io.BytesIO()
    layout = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
    np.lib.format.write_array_header_1_0(buffer, layout)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


BLOCK_ROWS = 1024
"""Rows that are encoded and saved together. A block is sorted by length and does not depend on other blocks, so an
encoding that was interrupted ends with the same vectors as one that was not."""


def encode_corpus(
    corpus: Corpus,
    encoder: Encoder,
    template: Template,
    file: Path,
    journal: Path,
    *,
    batch_size: int = 64,
    progress: bool | None = None,
) -> None:
    """Write the vectors of all passages, in row order, as a `.npy` matrix [n, d].

    Args:
        corpus: what to encode.
        encoder: gives the vectors.
        template: how a passage becomes a text.
        file: where to write; rows that an earlier call saved there are kept.
        journal: a small file beside it that says how many rows are safe.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.

    Raises:
        UserError: the disk is full, or the encoder returned nonsense. Finished blocks stay for the next call.
    """
    from tqdm import tqdm

    matrix = GrowingMatrix(file, journal, len(corpus), encoder.card.dim)
    disable = None if progress is None else not progress
    with tqdm(total=len(corpus), initial=matrix.done, desc="encoding", unit="passage", disable=disable) as bar:
        while matrix.done < len(corpus):
            passages = corpus[matrix.done : matrix.done + BLOCK_ROWS]
            texts = [template.of_passage(passage) for passage in passages]
            matrix.append(checked_encode(encoder, texts, batch_size))
            bar.update(len(passages))
