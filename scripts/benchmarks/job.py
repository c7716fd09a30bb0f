"""What a step gets: its settings, the time it has left, and where its results go."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from scripts.benchmarks.speed.workload import Item, read_items
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.pretrained import best_device

PASSAGES = 5
"""Passages of each question."""

LEAST_ITEMS = 8
"""Fewest questions of a run."""


_FILE = "settings.json"


class SkipStep(Exception):  # noqa: N818 - not an error
    """A step that this machine or these files do not allow; the message says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every step of a run is told."""

    work: str  # folder for logs, results of steps, checkpoints
    items: str  # JSON Lines of questions with passages
    # folder with the parts of the demo's base model; None where the cache has it
    parts: str | None = None
    # folder with rows.jsonl and heldout.jsonl of the demo's first stage
    rows: str | None = None
    device: str = "auto"  # `auto` (CUDA where there is one) or a torch device
    # random models of a few layers and few questions: does every step run?
    tiny: bool = False

    @property
    def shared_memory(self) -> Path:
        """Folder of this run in memory, on Linux: large checkpoints are written and read fast there."""
        return Path("/dev/shm") / Path(self.work).name  # noqa: S108 - the name of a temporary folder is its own

    def write(self, work: Path) -> None:
        """Write the settings for the processes of the steps."""
        (work / _FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, work: Path) -> Settings:
        """Read what `write` wrote."""
        return cls(**json.loads((work / _FILE).read_text(encoding="utf-8")))


@dataclass(slots=True)
class Job:
    """One step while it runs."""

    settings: Settings
    results: Path  # JSON Lines, one result each
    seconds: float  # time limit
    _start: float = field(default_factory=time.monotonic)

    @property
    def work(self) -> Path:
        """Folder for what steps leave to later ones."""
        return Path(self.settings.work)

    @property
    def device(self) -> str:
        """Return where models run: `cuda` or `cpu`, or what the user named."""
        return best_device() if self.settings.device == "auto" else self.settings.device

    @property
    def on_gpu(self) -> bool:
        """Return whether models run on a CUDA device."""
        return self.device.startswith("cuda")

    @property
    def dtype(self) -> Literal["bfloat16", "float32"]:
        """Number format of models that are timed: what the device is fast in."""
        return "bfloat16" if self.on_gpu else "float32"

    def has_time(self, seconds: float) -> bool:
        """Return whether so many seconds are left before the time limit."""
        return time.monotonic() - self._start + seconds < self.seconds

    def result(self, **values: Any) -> None:
        """Append one line to the table of the step. It is on disk at once: a step that is stopped keeps it."""
        self._append(values)

    def ended(self, status: str, reason: str = "") -> None:
        """Record how the step ended."""
        self._append({"status": status, "reason": reason})

    def _append(self, values: Mapping[str, Any]) -> None:
        line = json.dumps(values, ensure_ascii=False)
        with self.results.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, file=sys.stderr, flush=True)

    def items(self) -> list[Item]:
        """Return the questions of the items file.

        Raises:
            UserError: the file is missing, or has rows of another form.
        """
        path = Path(self.settings.items)
        available = sum(1 for _ in read_jsonl(path, dict))
        if available < LEAST_ITEMS:
            raise UserError(
                f"{path} holds {available} questions; at least {LEAST_ITEMS} are needed"
            )
        return read_items(path, available, PASSAGES)
