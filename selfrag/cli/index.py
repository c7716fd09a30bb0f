"""`selfrag index`: arguments in, text out. All work is done by `retrieval`."""

from __future__ import annotations

import glob
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retrieval.encoder_files import EncoderOptions
from retrieval.splitting import Splitting
from selfrag.cli.fields import Fields, FieldValues
from selfrag.cli.ray_options import RayOptions, ray_actors
from selfrag.cli.results import UNREADABLE, CommandResult, print_result
from selfrag.cli.running import Commands, with_entry_points
from selfrag.common.errors import UserError, count_of
from selfrag.common.plugins import load_present
from selfrag.common.untrusted import NAME, cut, printable

if TYPE_CHECKING:
    from retrieval.build import GivenVectors
    from retrieval.encoders import Encoder, EncoderCard
    from retrieval.index import IndexManifest
    from retrieval.passage import Passage
    from retrieval.remote import RemoteCard
    from retrieval.reports import ReadReport
    from retrieval.sync import SyncReport

app = Commands(
    name="index",
    help="Build and search an index of your own documents.",
    no_args_is_help=True,
    cls=with_entry_points("selfrag.index"),
)

_DEFAULT = Splitting()
VECTORS = "selfrag.vectors"
"""Entry points of what reads vectors that others encoded: a function of files gives `retrieval.build.GivenVectors`."""
_SHOWN = 300  # characters of a passage on the terminal
_WAVE = 256  # blocks of passages that are handed to Ray at once, some 200 MB of text

EncoderOption = Annotated[str | None, typer.Option(show_default="packaged MiniLM")]
CUTTING = (
    *("words", "overlap", "row_words", "sentences", "ocr"),
    *("text_column", "title_column", "id_column"),
)
Cutting = Annotated[
    FieldValues,
    Fields(Splitting, "How files are read and cut", *CUTTING),
]
CuttingAsBefore = Annotated[
    FieldValues,
    Fields(
        Splitting, "How files are read and cut", *CUTTING, default="as the index has it"
    ),
]
ENCODER_FIELDS = ("device", "precision", "batch_tokens")
Encoding = Annotated[FieldValues, Fields(EncoderOptions, "Encoder", *ENCODER_FIELDS)]
EncodingAsBefore = Annotated[
    FieldValues,
    Fields(EncoderOptions, "Encoder", *ENCODER_FIELDS, default="as the index has it"),
]
AsItIs = Annotated[
    str | None, typer.Option(show_default="as it is; auto for a new index")
]


_NO_OCR = "none"


def _splitting(before: Splitting, changes: FieldValues) -> Splitting:
    """Return how documents are read and cut: as before, but for the options that are given.

    Unknown names are refused also where no file is a document.
    """
    if "sentences" in changes:
        from retrieval.sentences import sentence_finder

        sentence_finder(changes["sentences"])
    if changes.get("ocr") == _NO_OCR:
        changes["ocr"] = None
    elif "ocr" in changes:
        from retrieval.documents import ReadingOptions, check_options

        check_options(ReadingOptions(ocr=changes["ocr"]))
    return replace(before, **changes)


@app.command()
def build(
    files: list[str],
    *,
    ctx: typer.Context,
    out: Path,
    encoder: EncoderOption = None,
    encoder_engine: str | None = None,
    encoding: Encoding,
    cutting: Cutting,
    vectors: list[str] | None = None,
    kind: AsItIs = None,
    storage: AsItIs = None,
    language: AsItIs = None,
    ray: RayOptions,
    skip_unreadable: bool = False,
    replace_index: Annotated[bool, typer.Option("--replace")] = False,
) -> CommandResult:
    """Build an index. Interrupted, it continues where it stopped when the same command is run again.

    With --skip-unreadable the exit code is 3 if a file was left out.

    Args:
        out: Directory of the index.
        vectors: Files with the vectors of the passages, in their order: npy, parquet, or shards of Contriever. A
            pattern in quotes names many; repeatable.
        replace_index: Replace an index that is there, also if it holds passages of other files.
    """
    from retrieval.build import build_index, check_lost
    from retrieval.encoders import NO_ENCODER
    from retrieval.local_encoders import load_encoder
    from retrieval.reports import ReadReport
    from retrieval.sources import list_files
    from selfrag.cli.lazy_encoder import LazyEncoder
    from selfrag.cluster import RayEncoder, connect
    from selfrag.loading import DEMO, encoder_source, resolve_encoder

    actors = ray_actors(ctx, ray)
    report = ReadReport()
    splitting = _splitting(_DEFAULT, cutting)
    listed = list_files(files, index=out.absolute(), skip_unreadable=skip_unreadable)
    check_lost(out, listed.files, replace_index)
    name = encoder_source(encoder, encoder_engine)
    if vectors is not None and name == NO_ENCODER:
        raise UserError("--vectors are of an encoder; name it in place of none")
    loaded: Encoder = LazyEncoder(out, name, encoding, anew=True)
    reading = f"reading {count_of(len(listed.files), 'files')}"
    if name != NO_ENCODER:
        reading += f", then loading encoder {name or DEMO}"
    typer.echo(printable(f"{reading} .."), err=True)
    with ExitStack() as stack:
        if actors is not None and name != NO_ENCODER:
            on_cpu = {**encoding, "device": "cpu"}
            here = load_encoder(resolve_encoder(name or DEMO), **on_cpu)
            stack.enter_context(connect(actors.address))
            options = {**encoding, "precision": here.card.precision}
            opening = partial(_open_encoder, name or DEMO, options)
            loaded = RayEncoder(here, opening, replace(actors, wave=_WAVE))
        retriever = build_index(
            listed,
            out,
            encoder=loaded,
            splitting=splitting,
            kind=kind,
            storage=storage,
            language=language,
            vectors=None if vectors is None else _given_vectors(_matching(vectors)),
            report=report,
            skip_unreadable=skip_unreadable,
            replace=replace_index,
        )
    passages = len(retriever.corpus)
    built = {
        "index": out,
        "passages": passages,
        "encoder": loaded.card.name,
        "read": report.as_dict() if report.files else None,
    }
    how = f"encoded by {loaded.card.name}" if loaded.card.dim else "words only"
    line = f"{count_of(passages, 'passages')} in {out}, {how}"
    return _written(built, report, line)


def _written(value: Mapping[str, Any], report: ReadReport, line: str) -> CommandResult:
    """Return the result of a command that reads files; what was read is noted on the error stream."""

    def show() -> None:
        if not report.files:
            typer.echo("the files have not changed and were not read again", err=True)
        else:
            for note in report.lines():
                typer.echo(printable(note), err=True)
        typer.echo(line)

    return CommandResult(value, show, _exit_code(report))


def _exit_code(report: ReadReport) -> int:
    return UNREADABLE if report.unreadable else 0


def _given_vectors(files: list[str]) -> GivenVectors:
    """Return the vectors in files, as the extension that reads them gives them."""
    read = load_present(VECTORS, "files")
    if read is None:
        raise UserError(
            "--vectors: the extension that reads files of vectors is not installed; install selfrag again"
        )
    vectors: GivenVectors = read(files)
    return vectors


def _open_encoder(name: str, options: FieldValues) -> Encoder:
    """Return the encoder as the machine of an actor finds it."""
    from retrieval.local_encoders import load_encoder
    from selfrag.loading import resolve_encoder

    return load_encoder(resolve_encoder(name), **options)


def _matching(patterns: list[str]) -> list[str]:
    """Return the files that patterns such as `passages_*` name, each pattern's in the order of their names."""
    files: list[str] = []
    for pattern in patterns:
        files += sorted(glob.glob(pattern)) or [pattern]  # noqa: PTH207
    return files


@app.command()
def add(
    directory: Path,
    files: list[str],
    *,
    encoder: EncoderOption = None,
    encoder_engine: str | None = None,
    encoding: EncodingAsBefore,
    cutting: CuttingAsBefore,
    skip_unreadable: bool = False,
) -> CommandResult:
    """Add files to an index. A file that is in it and has changed is replaced.

    Interrupted, it continues where it stopped when the same command is run again. With --skip-unreadable the exit code
    is 3 if a file was left out.

    Args:
        directory: Directory of the index, or the address of a remote one, such as milvus://HOST:PORT/NAME.
    """
    from retrieval.sync import add_files, check_order, index_splitting
    from selfrag.cli.lazy_encoder import LazyEncoder
    from selfrag.loading import encoder_source

    _check_local(directory)
    encoder = encoder_source(encoder, encoder_engine)
    check_order(directory, files)
    splitting = _splitting(index_splitting(directory), cutting)
    opened = LazyEncoder(directory, encoder, encoding)
    report = add_files(
        directory,
        files,
        encoder=opened,
        splitting=splitting,
        skip_unreadable=skip_unreadable,
    )
    line = f"{count_of(report.passages_added, 'passages')} added to {directory}"
    if report.passages_removed:
        line += f", {report.passages_removed} removed"
    return _written(report.as_dict(), report.read, line)


@app.command()
def sync(
    directory: Path,
    files: list[str],
    *,
    ctx: typer.Context,
    encoder: EncoderOption = None,
    encoder_engine: str | None = None,
    encoding: EncodingAsBefore,
    cutting: CuttingAsBefore,
    skip_unreadable: bool = False,
    watch: Annotated[bool, typer.Option("--follow")] = False,
) -> CommandResult | None:
    """Make an index equal to files and folders: add what is new, replace what changed, remove what is gone.

    An index that is not there is built. Passages that stay the same are not encoded again. Interrupted, the index is as
    before, and the same command continues.

    Args:
        watch: Stay, and do it again whenever a file changes.
    """
    from retrieval.sync import check_order, index_splitting, sync_index
    from selfrag.cli.lazy_encoder import LazyEncoder
    from selfrag.loading import encoder_source

    _check_local(directory)
    check_order(directory, files)
    splitting = _splitting(index_splitting(directory), cutting)
    opened = LazyEncoder(directory, encoder_source(encoder, encoder_engine), encoding)
    run = partial(
        sync_index,
        directory,
        files,
        encoder=opened,
        splitting=splitting,
        skip_unreadable=skip_unreadable,
    )
    if not watch:
        return _synced(run())
    from retrieval.watching import watch_files

    with _stop_on_interrupt() as stop:
        watch_files(
            files,
            directory,
            run,
            lambda report: print_result(ctx, _synced(report)),
            lambda error: typer.echo(f"not synced: {error}", err=True),
            stop,
        )
    return None


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that an interrupt sets: where one arrives in a finaliser, Python drops the exception."""
    stop, usual = threading.Event(), signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # no handler can be set there
        return

    def stopping(number: int, frame: FrameType | None) -> None:
        stop.set()
        if callable(usual):
            usual(number, frame)

    signal.signal(signal.SIGINT, stopping)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, usual)
    raise KeyboardInterrupt


_LISTED = 20  # files of a kind that a sync names on the terminal


def _synced(report: SyncReport) -> CommandResult:
    counts = (
        f"{count_of(len(report.added), 'files')} added, {len(report.changed)} changed,"
        f" {len(report.removed)} removed"
    )
    lines = [f"{counts}, {report.unchanged} unchanged"]
    listed = {
        "added": report.added,
        "changed": report.changed,
        "removed": report.removed,
        "link": report.links,
    }
    for what, names in listed.items():
        lines += [f"  {what:<8} {cut(name, NAME)}" for name in names[:_LISTED]]
        if len(names) > _LISTED:
            lines.append(f"  {what:<8} and {len(names) - _LISTED} more")
    lines += [f"  {printable(line)}" for line in report.read.lines()[1:]]
    changes = f"{count_of(report.passages_added, 'passages')} added, {report.passages_removed} removed"
    lines.append(
        f"{changes}, {report.passages_encoded} encoded; {report.passages} in the index"
    )
    if report.compacted:
        lines.append("compacted: the index is one segment without removed passages")
    return CommandResult(report.as_dict(), "\n".join(lines), _exit_code(report.read))


@app.command()
def remove(
    directory: Path,
    ids: Annotated[list[str] | None, typer.Argument()] = None,
    *,
    file: list[str] | None = None,
) -> CommandResult:
    """Remove passages from an index by id, or by the file that they came from.

    Args:
        directory: Directory of the index, or the address of a remote one, such as milvus://HOST:PORT/NAME.
        ids: Ids of the passages.
        file: Remove all passages of this file: its path, or its path inside its folder. Repeatable.
    """
    from retrieval.build import remove_passages
    from retrieval.sync import remove_files

    if not ids and not file:
        raise UserError("nothing to remove; give ids of passages, or --file PATH")
    if ids and file:
        raise UserError("give ids of passages or --file PATH, not both")
    _check_local(directory)
    removed = (
        remove_files(directory, file) if file else remove_passages(directory, ids or [])
    )
    line = f"{count_of(removed, 'passages')} removed from {directory}"
    return CommandResult({"passages_removed": removed}, line)


def _check_local(directory: Path) -> None:
    """Refuse the address of a remote index, which is a copy of a folder."""
    from selfrag.loading import remote_indexes

    if remote_indexes(directory) is not None:
        raise UserError(
            f"{directory} is a copy on a server; change the index that it was pushed from, and push it again"
        )


@app.command()
def compact(
    directory: Path,
    *,
    kind: AsItIs = None,
    storage: AsItIs = None,
    language: AsItIs = None,
) -> CommandResult:
    """Make an index one segment without the removed passages, or change how it is searched. Nothing is encoded."""
    from retrieval.build import compact_index

    compact_index(directory, kind=kind, storage=storage, language=language)
    return info(directory)


@app.command()
def info(directory: Path, *, verify: bool = False) -> CommandResult:
    """Show what an index holds, how it is searched, and the recall that was measured.

    Args:
        directory: Directory of the index, or the address of a remote one, such as milvus://HOST:PORT/NAME.
        verify: Read all files and compare their checksums.
    """
    from retrieval.build import verify_index
    from retrieval.index import load_manifest
    from selfrag.loading import index_directory, remote_indexes

    remote = remote_indexes(directory)
    if remote is not None:
        if verify:
            raise UserError("a remote index has no checksums; leave --verify out")
        card = remote.read_card(directory)
        values, rows = card.values, _remote_info(card)
    else:
        path = index_directory(str(directory))
        manifest = verify_index(path) if verify else load_manifest(path)
        values, rows = manifest.as_dict(), _index_info(path, manifest)
    lines = [f"{name:<11} {printable(value)}" for name, value in rows.items()]
    return CommandResult(values, "\n".join(lines))


def _encoder_line(encoder: EncoderCard) -> str:
    if not encoder.dim:
        return "none, words only"
    return f"{encoder.name}, {count_of(encoder.dim, 'numbers')} a passage, {encoder.precision or 'of a server'}"


def _words_line(language: str, analyzer: int) -> str:
    from retrieval.words import ANALYZER

    if not language:
        return "none"
    line = f"BM25, {language}"
    if analyzer != ANALYZER:
        line += ", by an older version; selfrag index compact renews them"
    return line


def _index_info(path: Path, manifest: IndexManifest) -> dict[str, str]:
    from retrieval.corpus import Corpus
    from retrieval.index import CORPUS

    added = sum(segment.passages for segment in manifest.added)
    rows = {
        "passages": f"{manifest.rows - manifest.removed}",
        "segments": f"{len(manifest.segments)}; {count_of(added, 'passages')} added, {manifest.removed} removed",
        "encoder": _encoder_line(manifest.encoder),
        "columns": ", ".join(["id", "title", *Corpus.open(path / CORPUS).columns()]),
        "words": _words_line(manifest.language, manifest.analyzer),
        "search": "flat (exact)" if manifest.encoder.dim else "words only",
        "disk": f"{sum(manifest.files.values()) / 1e6:.1f} MB",
        "generation": f"{manifest.generation}",
    }
    if (dense := manifest.dense) is not None:
        lists = f"{dense.nprobe} lists and " if dense.nprobe else ""
        rows["search"] = (
            f"{manifest.kind} ({dense.factory}); a query visits {lists}{count_of(dense.candidates, 'candidates')}"
        )
        bound = f"lower 95% bound {dense.recall_low:.3f}, {count_of(dense.queries, 'queries')}"
        rows["recall@10"] = f"{dense.recall:.3f} of exact search ({bound})"
    return rows


def _remote_info(card: RemoteCard) -> dict[str, str]:
    return {
        "passages": f"{card.passages}",
        "encoder": _encoder_line(card.encoder),
        "columns": ", ".join(card.columns),
        "words": f"BM25, {card.language}" if card.language else "none",
        "search": card.search,
    }


@app.command()
def search(
    directory: Path,
    query: str,
    *,
    k: Annotated[int, typer.Option("-k", min=1)] = 5,
    encoder: EncoderOption = None,
    encoder_engine: str | None = None,
    mode: Annotated[
        str | None,
        typer.Option("--search-mode", show_default="hybrid where the index has both"),
    ] = None,
    where: list[str] | None = None,
) -> CommandResult:
    """Print the passages of an index that match a query best.

    Args:
        directory: Directory of the index, or the address of a remote one, such as milvus://HOST:PORT/NAME.
        query: What to look for.
        k: Number of passages.
        mode: dense, words, or hybrid for both.
        where: Condition on the columns of the passages, such as year>=2020; may be repeated.
    """
    from selfrag.loading import encoder_source, load_index

    if not query.strip():
        raise UserError("the query is empty; write one in quotes")
    retriever = load_index(
        str(directory), encoder_source(encoder, encoder_engine), mode
    ).where(*where or ())
    passages = retriever([query], k)[0]
    notice = retriever.notice(query) or (
        "" if passages else "no passage matches the query"
    )
    if notice:
        typer.echo(notice, err=True)
    value = {
        "query": query,
        "passages": [passage.as_dict() for passage in passages],
    }
    lines = [_line(rank, passage) for rank, passage in enumerate(passages, start=1)]
    return CommandResult(value, "\n".join(lines))


def _line(rank: int, passage: Passage) -> str:
    text = " ".join(passage.text.split())
    if len(text) > _SHOWN:
        text = text[:_SHOWN].rsplit(" ", 1)[0] + " ..."
    title = " ".join(cut(passage.title, NAME).split())
    text = " ".join(printable(text).split())
    return f"{rank}. [{passage.score:.3f}] {cut(passage.id, NAME)}  {title}\n   {text}"
