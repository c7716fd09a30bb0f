"""What a command line names to be run: a file in the schema of user files, or `TASK=FILE` for a published task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from selfrag.evaluation.tasks.preset import PAPER, Preset
from selfrag.evaluation.tasks.presets import preset

_TASK = re.compile(r"([a-z][a-z0-9-]*)(?:/([a-z0-9-]+))?=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Given:
    """A file, and what it is a file of.

    Attributes:
        path: the file.
        preset: the published task; None for a file in the schema of user files.
        protocol: how the published task is run.
    """

    path: Path
    preset: Preset | None = None
    protocol: str = PAPER

    @classmethod
    def parse(cls, text: str) -> Given:
        """`FILE`, `TASK=FILE` or `TASK/PROTOCOL=FILE`, such as `arc-challenge/official=arc.jsonl`.

        A file whose own name has this form is taken as that file.

        Raises:
            UserError: unknown task or protocol.
        """
        match = None if Path(text).exists() else _TASK.fullmatch(text)
        if match is None:
            return cls(Path(text))
        return cls.marked(Path(match[3]), match[1] if match[2] is None else f"{match[1]}/{match[2]}")

    @classmethod
    def marked(cls, path: Path, mark: str) -> Given:
        """A file read as a run's manifest says: `mark` is the `preset` of its task, or empty.

        Raises:
            UserError: unknown task or protocol.
        """
        if not mark:
            return cls(path)
        name, _, protocol = mark.partition("/")
        found = cls(path, preset(name), protocol or PAPER)
        preset(name).protocol(found.protocol)
        return found

    @property
    def name(self) -> str:
        """What a run and a table call it: the task, or the file's name without its endings."""
        return self.preset.name if self.preset else self.path.name.removesuffix(".gz").removesuffix(".jsonl")
