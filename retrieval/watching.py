"""Repeats a sync whenever files change, and every few minutes where some are pages (extra `watch`).

What goes wrong is told in one line and the watch goes on: a file that cannot be read, a folder that vanishes, another
process that changes the index. The sync is then tried again after the next change, and after some seconds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

from retrieval.sources import IGNORED
from retrieval.sync import SyncReport
from selfrag.common.errors import UserError, require
from selfrag.common.reading import user_path

_QUIET = 300
_LONGEST = 3_000  # milliseconds without a change after which a sync begins, and that it waits at most
_LOOK = 1_000  # milliseconds between two looks at what the system does not tell, such as a folder that is back
_RETRY = 10.0  # seconds after a failed sync
PAGE_PAUSE = 600.0
"""Seconds after which pages are fetched again: nothing tells that they changed."""
_Looks: TypeAlias = list[tuple[int, ...]]


def watch_files(
    files: Sequence[str | Path],
    index: Path,
    sync: Callable[[], SyncReport],
    done: Callable[[SyncReport], None],
    failed: Callable[[UserError], None],
    stop: Event,
) -> None:
    """Sync now, after each burst of changes of files, and every `PAGE_PAUSE` seconds with pages, until `stop` is set.

    Args:
        files: files, folders and addresses of pages.
        index: the folder of the index; changes in it do not count.
        sync: does it.
        done: is called after a sync that changed something.
        failed: is called after a sync that failed, unless the one before failed in the same way.
        stop: ends the watch.

    Raises:
        UserError: watchfiles is not installed, or the system cannot watch so many folders.
    """
    watchfiles = require("watchfiles", extra="watch")
    paths = [user_path(file) for file in files]
    ignored = os.path.realpath(index)
    has_pages = any("://" in str(file) for file in files)
    pause = PAGE_PAUSE if has_pages else math.inf
    failure, due = "", 0.0  # the last failure, and when to sync without a change

    def counts(_: object, changed: str) -> bool:
        path = Path(changed)
        hidden = any(part.startswith(IGNORED) for part in path.parts[-1:])
        return (
            not hidden
            and not path.is_relative_to(ignored)
            and not path.is_relative_to(f"{ignored}.building")
        )

    while not stop.is_set():
        folders = [path for path in paths if path.is_dir()]
        looks = _look(paths)
        bursts = _bursts(watchfiles, folders, counts, stop)
        for burst in bursts:
            seen = _look(paths)
            if burst or seen != looks or time.monotonic() >= due:
                try:
                    report = sync()
                except UserError as error:
                    if str(error) != failure:
                        failed(error)
                    failure, due = str(error), time.monotonic() + _RETRY
                else:
                    failure, due = "", time.monotonic() + pause
                    if report.has_changes:
                        done(report)
            if seen != looks:  # a folder is gone, back or another one: watch anew
                break


def _bursts(
    watchfiles: Any,
    folders: Sequence[Path],
    counts: Callable[[object, str], bool],
    stop: Event,
) -> Iterator[bool]:
    """Yield whether something changed, after each burst of changes and after a while without any."""
    if not folders:
        while not stop.wait(_LOOK / 1000):
            yield False
        return
    try:
        for changes in watchfiles.watch(
            *folders,
            watch_filter=counts,
            stop_event=stop,
            step=_QUIET,
            debounce=_LONGEST,
            rust_timeout=_LOOK,
            yield_on_timeout=True,
        ):
            yield bool(changes)
    except FileNotFoundError:  # it vanished a moment ago
        yield True
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"the system cannot watch {folders[0]}: {error}; sync by a timer instead"
        ) from error


def _look(paths: Sequence[Path]) -> _Looks:
    """Return what tells a folder or a file that was named from what was there before."""
    looks: _Looks = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            looks.append(())
            continue
        look: tuple[int, ...] = (status.st_dev, status.st_ino)
        if not path.is_dir():
            look += (status.st_size, status.st_mtime_ns)
        looks.append(look)
    return looks
