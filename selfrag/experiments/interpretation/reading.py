"""A run of the grid read back from its directory. Computes no figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from selfrag.errors import UserError
from selfrag.evaluation.records import read_manifest, read_records
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.judging import SUFFIX
from selfrag.experiments.interpretation.run import KIND, Job
from selfrag.experiments.interpretation.store import read_questions
from selfrag.experiments.interpretation.template import Template

Records = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run directory.

    Attributes:
        folder: where.
        identity: of the run, as its manifest has it.
        job: the questions and how they were asked.
        cells: finished ones, in the order of the run.
        files: what the manifest says of each file of records.
    """

    folder: Path
    identity: Mapping[str, Any]
    job: Job
    cells: tuple[Cell, ...]
    files: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the generator."""
        return str(self.identity["name"])

    def records(self, name: str) -> Records | None:
        """Records of a cell, or of a test of a cell; None where they are not finished."""
        if "result" not in self.files.get(name, {}):
            return None
        return read_records(self.folder / f"{name}.jsonl")

    def tested(self, cell: Cell, test: str) -> Records | None:
        """Records of a counterfactual test."""
        return self.records(f"{cell.name}.{test}")

    def judged(self, cell: Cell) -> Records | None:
        """Verdicts of reflection tokens and citation intrinsic."""
        return self.records(f"{cell.name}.{SUFFIX}")

    def select(self, patterns: Sequence[str]) -> tuple[Cell, ...]:
        """Finished cells whose names match one of the patterns, such as `k5-*-direct`; all where there is no pattern.

        Raises:
            UserError: a pattern that matches nothing.
        """
        for pattern in patterns:
            if not any(fnmatchcase(cell.name, pattern) for cell in self.cells):
                raise UserError(f"--cell {pattern}: no such cell in {self.folder}; there are {self._names()}")
        return tuple(c for c in self.cells if not patterns or any(fnmatchcase(c.name, one) for one in patterns))

    def _names(self) -> str:
        shown = [cell.name for cell in self.cells[:4]]
        return ", ".join([*shown, "..."] if len(self.cells) > 4 else shown) or "none that is finished"


def read_grid(folder: Path) -> GridRun:
    """Read a run directory.

    Raises:
        UserError: it holds no run of a grid, or was changed.
    """
    manifest = read_manifest(folder)
    identity = manifest["identity"]
    if not isinstance(identity, dict) or "questions" not in identity or "generator" not in identity:
        raise UserError(f"{folder} holds a run of something else than `selfrag interpret`")
    files = manifest["files"]
    grid = {
        name: entry for name, entry in files.items() if entry["settings"]["task"]["kind"] == KIND and "." not in name
    }
    cells = tuple(Cell.from_dict(entry["settings"]["cell"]) for entry in grid.values() if "result" in entry)
    path = next((Path(entry["path"]) for entry in grid.values()), folder)
    template = Template(**identity["generator"]["template"])
    source = {"data": identity["data"]}
    job = Job(read_questions(folder, identity["questions"]), path, template, source)
    return GridRun(folder, identity, job, cells, files)
