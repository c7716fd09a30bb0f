"""What a long run says of itself: a bar on a terminal, plain lines now and then where the output goes to a file."""

from __future__ import annotations

import sys
import time

EVERY = 30.0
"""Seconds between two plain lines."""


class Progress:
    """The progress of one run, on the error stream; use it as a context manager.

    `what` is done, such as `training`, in a unit such as `step`; `done` units were done before, when a run continues.
    With `show`, False is for nothing and True for a bar; None decides by where the output goes. A run of less than
    `quiet` seconds has no plain line; with 0 the first and the last piece of work always have one.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None,
        done: int = 0,
        *,
        show: bool | None = None,
        quiet: float = EVERY,
    ) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            initial=done,
            desc=what,
            unit=unit,
            disable=None if show is None else not show,
        )
        self._what = what
        self._unit = unit
        self._total = total
        self._begun = done
        self.done = done
        self._plain, self._quiet = show is None and bool(self._bar.disable), quiet
        self._started, self._told = time.monotonic(), -EVERY

    def advance(self, count: int = 1, note: str = "") -> None:
        """Tell that `count` more units are done; `note` says how it goes, such as the loss."""
        self.done += count
        if not self._plain:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            return
        passed = time.monotonic() - self._started
        if passed < self._quiet or (
            passed - self._told < EVERY and self.done != self._total
        ):
            return
        self._told = passed
        line_parts = [f"{self._what}: {self._unit} {self.done}", note]
        if self._total is not None:
            left = passed / max(1, self.done - self._begun) * (self._total - self.done)
            line_parts = [
                f"{line_parts[0]} of {self._total}",
                note,
                f"{duration(left)} left",
            ]
        sys.stderr.write(", ".join(part for part in line_parts if part) + "\n")
        sys.stderr.flush()

    def skip(self, count: int) -> None:
        """Tell that `count` units were done before this run."""
        self._begun, self.done = self._begun + count, self.done + count
        self._bar.update(count)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def duration(seconds: float) -> str:
    """Seconds in words, in the unit that people would use."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.0f} minutes"
    return f"{max(0, round(seconds))} s"
