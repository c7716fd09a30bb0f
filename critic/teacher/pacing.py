"""When the next request may start: an even pace a minute, and a pause that the endpoint asked for. Knows no request."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """Starts requests at an even pace. Use it from one event loop only.

    Args:
        per_minute: most requests started a minute; None for no limit.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until a request may start."""
        while True:
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._interval
                return
            # Not longer than to the pause's end as known now: another request may lengthen it meanwhile.
            await asyncio.sleep(self._next - now)

    def hold(self, seconds: float) -> None:
        """Let nothing start for so many seconds."""
        self._next = max(self._next, time.monotonic() + seconds)
