"""Keeps the index of a server in step with files: syncs it when they change, and lets the server search the new state.

Questions that run end with the state that they began with.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.index import load_manifest, open_index
from retrieval.search import IndexVersion
from retrieval.sync import SyncReport, sync_index
from retrieval.watching import watch_files
from selfrag.common.errors import UserError, count_of
from selfrag.serving.service import Service

_PATIENCE = 5.0  # seconds for a sync to end when the server ends
LOG = logging.getLogger("selfrag.serving")


@dataclass(slots=True)
class IndexWatch:
    """A thread that syncs an index with files and gives each new state to a service.

    Attributes:
        index: folder of the index.
        files: files and folders that it follows.
        skip_unreadable: go on past files that cannot be read.
    """

    index: Path
    files: Sequence[str | Path]
    skip_unreadable: bool = False
    _stop: threading.Event = field(
        default_factory=threading.Event, init=False, repr=False
    )
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    def start(self, service: Service) -> None:
        """Begin to watch; to be called on the event loop of the server."""
        arguments = service, asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="index-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the watch. A sync that takes longer is left: the index stays as it was."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        def sync() -> SyncReport:
            searched = service.index
            encoder = None if searched is None else searched.encoder
            report = sync_index(
                self.index,
                self.files,
                encoder=encoder,
                skip_unreadable=self.skip_unreadable,
            )
            manifest = load_manifest(self.index)
            present = IndexVersion(manifest.generation, manifest.own_digest())
            if searched is None or searched.version != present:
                loop.call_soon_threadsafe(
                    service.use_retriever, open_index(self.index, encoder)
                )
            return report

        def done(report: SyncReport) -> None:
            for line in report.read.lines()[1:]:
                LOG.warning("%s", line)
            counts = (
                count_of(len(report.added), "files"),
                len(report.changed),
                len(report.removed),
                report.generation,
            )
            LOG.warning(
                "index synced: %s added, %d changed, %d removed; generation %d",
                *counts,
            )

        def failed(error: UserError) -> None:
            LOG.error("the index was not synced: %s", error)

        try:
            watch_files(self.files, self.index, sync, done, failed, self._stop)
        except Exception as error:  # the server answers on from the last state
            LOG.error("the watch of the index has ended", exc_info=error)
