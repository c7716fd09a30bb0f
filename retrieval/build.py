"""Building an index: encode passages, resumable, and put the directory in place all at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from retrieval.atomic import locked_directory, publish, write_json, writing
from retrieval.checks import whole
from retrieval.corpus import Corpus, Row, check_replaceable
from retrieval.encoders import Encoder, Template, load_encoder
from retrieval.errors import UserError
from retrieval.index import CORPUS, VECTORS, IndexManifest, building_directory, load_manifest, open_index
from retrieval.manifests import MANIFEST, sizes
from retrieval.passage import Passage
from retrieval.readers import read_files
from retrieval.reading import read_json, user_path
from retrieval.search import DenseRetriever
from retrieval.splitting import Splitting
from retrieval.vectors import encode_corpus

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
    rows = read_files(files, splitting)
    return index_passages(rows, out, encoder=encoder, template=template, batch_size=batch_size, progress=progress)


def index_passages(
    passages: Iterable[Passage | Row],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    template: Template | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
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

    Raises:
        UserError: a bad passage, a bad encoder, a full disk, or another process that builds the same index.
    """
    whole("batch_size", batch_size)
    target = Path(os.path.abspath(user_path(out)))  # noqa: PTH100 - resolve() would follow a link and replace what it points to
    check_replaceable(target, {CORPUS, VECTORS, MANIFEST})
    encoder = load_encoder(encoder)
    with locked_directory(building_directory(target)) as building:
        draft = building / "draft"
        _sweep(building)
        try:
            corpus = Corpus.build(passages, draft / CORPUS)
        except BaseException:
            if not (draft / VECTORS).exists():
                shutil.rmtree(building, ignore_errors=True)
            raise
        plan = IndexManifest(len(corpus), corpus.digest, encoder.card, template or Template())
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


def _sweep(building: Path) -> None:
    """Remove temporary files of a process that was killed."""
    for entry in [*building.glob(".*.partial"), *building.glob("draft/.*.partial"), *building.glob("draft/.*.old")]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _built(target: Path, plan: IndexManifest, encoder: Encoder) -> DenseRetriever | None:
    """The index at `target` if it is sound and is what was asked for."""
    try:
        return open_index(target, encoder) if load_manifest(target).identity() == plan.identity() else None
    except UserError:  # missing, half-written, damaged or older: to be replaced
        return None


def _keep_vectors_of(plan: IndexManifest, building: Path) -> None:
    """Throw away what an interrupted build of other passages or with another encoder has left."""
    wanted = plan.identity()
    try:
        left = read_json(building / _PLAN)
    except UserError:
        left = None
    if left != wanted:
        (building / _JOURNAL).unlink(missing_ok=True)
        write_json(building / _PLAN, wanted)
