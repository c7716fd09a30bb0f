"""Where a number or a file came from: commit of the code, checksums of files, versions of packages."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def commit() -> str | None:
    """The checkout this code runs from, with `+changes` where files differ from it; None outside of one."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed arguments
    return done.stdout.strip() or None


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions; packages that are not installed are left out."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
