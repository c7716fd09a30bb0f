"""Directories that appear complete or not at all. Knows no models; a crash leaves only a hidden temporary sibling."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selfrag.errors import UserError


@contextmanager
def published(out_dir: Path) -> Iterator[Path]:
    """A temporary directory beside `out_dir` that takes its name when the block ends without an exception.

    Args:
        out_dir: the final place; must not exist, or be empty.

    Yields:
        The directory to write into, on the same file system, so that the final rename is atomic.

    Raises:
        UserError: `out_dir` is a file, or a directory with content.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise UserError(f"{out_dir} exists already; choose another directory or remove it")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", suffix=".partial", dir=out_dir.parent))
    try:
        working.chmod(0o755)
        yield working
        # rename(2) replaces an empty directory and refuses one that another process filled in the meantime.
        working.replace(out_dir)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
