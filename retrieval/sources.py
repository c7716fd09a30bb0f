"""Which files are read where a user names files and folders, and the name of each in the ids of its passages.

A folder stands for the files below it that have a reader. Left out are names that begin with a dot or with `~$` (lock
files of office programs), symbolic links, which could lead out of the folder or in a circle, and the index itself.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unicodedata import normalize

from retrieval.documents import document_format, document_suffixes
from retrieval.reports import ReadReport, UnreadableFile
from retrieval.tables import TABLES
from selfrag.common.errors import UserError
from selfrag.common.plugins import load_present
from selfrag.common.reading import regular_file, user_path

GROUP = "selfrag.sources"
"""Entry points by the scheme of an address: a function of it that gives the suffix and the bytes of a page, or None
where there is no such page any more."""
_PACKED = (
    *(".parquet", ".pdf", ".docx", ".docm", ".dotx", ".dotm"),
    *(".pptx", ".xlsx", ".ods", ".odt", ".epub"),
)
"""Formats that compress by themselves."""
IGNORED = (".", "~$")
"""How names begin that a folder does not stand for."""
_SETTLED = 2.0  # seconds; a file that changed later than this ago may change again without its times telling


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read."""

    path: Path  # as messages name it
    location: str  # its absolute path, which tells it from all other files
    inside: str  # its path inside the folder that was named; the name of the file where it was named itself

    @property
    def shown(self) -> str:
        """Return how messages name it: a page by its address, which is its location too."""
        return self.location if "://" in self.location else str(self.path)


@dataclass(slots=True)
class SourceList:
    """The files that names stand for, and what was left out."""

    files: list[SourceFile] = field(default_factory=list)
    unreadable: list[UnreadableFile] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # pages that are no longer there
    links: list[str] = field(default_factory=list)  # symbolic links inside folders
    # files inside folders that no reader knows, by suffix
    unknown: Counter[str] = field(default_factory=Counter)

    def add_to(self, report: ReadReport) -> None:
        """Record in a report what was left out."""
        report.unreadable += self.unreadable
        report.gone += self.gone
        report.unknown = dict(self.unknown.most_common())


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells whether a file has changed."""

    size: int
    modified: int  # nanoseconds; -1 where the file was too young for its times to tell of a later change
    changed: int  # nanoseconds, of its name, owner and permissions too; -1 likewise
    digest: str = ""  # blake2b of its bytes; empty where they were not read

    def same_times(self, later: FileState) -> bool:
        """Return whether a later state of the file has its size and its times, so that its bytes need not be read."""
        return self.modified >= 0 and (self.size, self.modified, self.changed) == (
            later.size,
            later.modified,
            later.changed,
        )


def file_state(path: Path, *, digest: bool = False) -> FileState:
    """Return the state of a file, with the digest of its bytes where that is asked for."""
    try:
        status = path.stat()
        content = ""
        if digest:
            with path.open("rb") as file:
                content = hashlib.file_digest(
                    file, lambda: hashlib.blake2b(digest_size=16)
                ).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    young = time.time() - max(status.st_mtime, status.st_ctime) < _SETTLED
    modified = -1 if young else status.st_mtime_ns
    changed = -1 if young else status.st_ctime_ns
    return FileState(status.st_size, modified, changed, content)


def file_kind(path: Path) -> str:
    """Return the suffix that decides how a file is read; one without a reader is refused."""
    suffix = _suffix(path.name)
    if suffix in TABLES or document_format(suffix) is not None:
        if suffix in _PACKED and path.suffix == ".gz":
            raise UserError(
                f"{path}: unpack it first; {suffix[1:].capitalize()} compresses by itself"
            )
        return suffix
    known = " ".join((*TABLES, *document_suffixes()))
    raise UserError(
        f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)"
    )


def _suffix(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix.lower()


def list_files(
    names: Sequence[str | Path] | str | Path | SourceList,
    *,
    index: Path | None = None,
    skip_unreadable: bool = False,
) -> SourceList:
    """Return the files that names of files and folders stand for: named files in order, those of a folder by name.

    Args:
        names: files, folders, and addresses of pages, which are fetched now; or what was listed before. A file that is
            named twice, or that lies in a named folder, is listed once.
        index: the folder of an index, which is not read where it lies in a named folder.
        skip_unreadable: list what cannot be read in place of refusing it.

    Raises:
        UserError: no names, a place that cannot be read, a file without a reader, or no files.
    """
    if isinstance(names, SourceList):
        return names
    if isinstance(names, str | Path):
        names = [names]
    if not names:
        raise UserError("no files to read; name at least one")
    listed = SourceList()
    excluded = set[str]()
    if index is not None:
        place = os.path.realpath(index)
        excluded = {place, f"{place}.building"}
    for name in names:
        try:
            _add_named(name, listed, excluded, skip_unreadable)
        except UserError as error:
            if not skip_unreadable:
                raise
            listed.unreadable.append(UnreadableFile(str(name), str(error)))
    listed.files = _without_doubles(listed.files)
    if not listed.files and not listed.unreadable:
        shown = ", ".join(map(str, names))
        if listed.gone:
            raise UserError(f"{shown:.200}: the server has no such page any more")
        raise UserError(
            f"{shown:.200}: no file in it has a reader; known: {' '.join((*TABLES, *document_suffixes()))}"
        )
    return listed


def _add_file(path: Path, location: str, inside: str, listed: SourceList) -> None:
    try:
        location.encode()
    except UnicodeEncodeError:
        raise UserError(f"{str(path)!r:.200} is no name in UTF-8; rename it") from None
    regular_file(path)
    listed.files.append(SourceFile(path, location, inside))


def _add_named(
    name: str | Path,
    listed: SourceList,
    excluded: Collection[str],
    skip_unreadable: bool,
) -> None:
    """Add what a name stands for: a page, the files of a folder, or a file."""
    if "://" in str(name):
        _add_page(str(name).partition("#")[0], listed)
        return
    path = user_path(name)
    if path.is_dir():
        _add_folder(path, listed, excluded, skip_unreadable)
        return
    if not path.exists():
        regular_file(path)
    file_kind(path)
    _add_file(path, os.path.realpath(path), path.name, listed)


def _add_page(address: str, listed: SourceList) -> None:
    """Fetch a page into a file of this process."""
    scheme = address.partition("://")[0].lower()
    fetch = load_present(GROUP, scheme)
    if fetch is None:
        raise UserError(f"{address:.200}: nothing fetches addresses of {scheme}")
    page = fetch(address)
    if page is None:
        listed.gone.append(address)
        return
    suffix, content = page
    name = hashlib.blake2b(address.encode(), digest_size=16).hexdigest()
    path = _page_folder() / f"{name}{suffix}"
    path.write_bytes(content)
    file = SourceFile(path, address, address)
    try:
        file_kind(path)
    except UserError as error:
        raise UserError(str(error).replace(str(path), address)) from error
    listed.files.append(file)


@cache
def _page_folder() -> Path:
    """Return the folder of pages, which goes when the process ends."""
    folder = mkdtemp(prefix="selfrag-pages-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _add_folder(
    folder: Path, listed: SourceList, excluded: Collection[str], skip_unreadable: bool
) -> None:
    """Add the files below a folder, in the order of their paths."""
    root = os.path.realpath(folder)
    waiting = [""]  # paths of folders inside the named one
    while waiting:
        inner = waiting.pop()
        try:
            with os.scandir(folder / inner) as entries:
                children = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            why = f"{folder / inner}: cannot be read: {error.strerror or error}"
            if not skip_unreadable:
                raise UserError(why) from error
            listed.unreadable.append(UnreadableFile(str(folder / inner), why))
            continue
        folders = list[str]()
        for child in children:
            inside = f"{inner}/{child.name}" if inner else child.name
            if child.name.startswith(IGNORED):
                continue
            if child.is_symlink():
                listed.links.append(inside)
            elif child.is_dir():
                if os.path.join(root, inside) not in excluded:  # noqa: PTH118 - a Path for each file is slow
                    folders.append(inside)
            elif (
                _suffix(child.name) not in TABLES
                and document_format(_suffix(child.name)) is None
            ):
                listed.unknown[_suffix(child.name) or "no suffix"] += 1
            else:
                _add_inside(folder, root, inside, listed, skip_unreadable)
        waiting += reversed(folders)


def _add_inside(
    folder: Path, root: str, inside: str, listed: SourceList, skip_unreadable: bool
) -> None:
    path = folder / inside
    try:
        file_kind(path)
        _add_file(path, f"{root}/{inside}", inside, listed)
    except UserError as error:
        if not skip_unreadable:
            raise
        listed.unreadable.append(UnreadableFile(str(path), str(error)))


def _without_doubles(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Return each file once, with its longest path inside a named folder, whatever the order of the names."""
    by_location: dict[str, SourceFile] = {}
    for file in files:
        known = by_location.get(file.location)
        if known is None or len(file.inside) > len(known.inside):
            by_location[file.location] = file
    return list(by_location.values())


def name_files(
    files: Sequence[SourceFile], taken: Collection[str] = ()
) -> dict[str, str]:
    """Return a name for each file by its location: the start of the ids of its passages.

    It is the path inside the named folder without the suffix. Where two files would share it, or where `taken` has it,
    these files get the suffix too, and then as many folders as are needed to tell them apart.
    """
    candidates = {file.location: list(_candidates(file)) for file in files}
    depths = dict.fromkeys(candidates, 0)
    names = {location: listed[0] for location, listed in candidates.items()}
    clashing = True
    while clashing:
        counts = Counter([*taken, *names.values()])
        clashing = False
        for location, listed in candidates.items():
            if counts[names[location]] > 1 and depths[location] < len(listed) - 1:
                depths[location] += 1
                names[location] = listed[depths[location]]
                clashing = True
    return names


def _candidates(file: SourceFile) -> Iterator[str]:
    """Yield names of a file, from the shortest to its whole path. Composed and decomposed letters are the same."""
    inside = normalize("NFC", file.inside)
    folder, _, name = inside.removesuffix(".gz").rpartition("/")
    stem = name.rsplit(".", 1)[0] or name
    yield f"{folder}/{stem}" if folder else stem
    yield inside
    yield file.inside
    parts = Path(normalize("NFC", file.location)).parts
    for depth in range(len(Path(inside).parts) + 1, len(parts)):
        yield "/".join(parts[-depth:])
    yield file.location
