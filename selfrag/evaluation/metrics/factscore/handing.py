"""A run handed to the official FactScore tool, and its decisions taken in. Runs nothing."""

from __future__ import annotations

from pathlib import Path

from selfrag.evaluation.metrics.factscore.official import read_output, write_input
from selfrag.evaluation.metrics.judgeable import Load, judgeable
from selfrag.evaluation.metrics.judged_files import Judged, about, write_judged
from selfrag.evaluation.metrics.judging import facts_judged
from selfrag.provenance import sha256

OFFICIAL = "factscore.factscorer"
"""What reports call the tool."""


def official_input(folder: Path, name: str, load: Load, path: Path) -> int:
    """Write a file of a run as the official FactScore tool reads it; returns the number of lines.

    Raises:
        UserError: as `judgeable`, or an item has no topic.
    """
    _, records = judgeable(folder, name, load)
    return write_input(path, [one.item for one in records], {one.item.id: one.output for one in records})


def official_output(folder: Path, name: str, load: Load, path: Path) -> Judged:
    """Take what the official FactScore tool says about a file of a run, and write it beside the records.

    Raises:
        UserError: as `judgeable`, or the tool's file is damaged or of other answers.
    """
    _, records = judgeable(folder, name, load)
    facts = read_output(path, [one.item for one in records])
    identity = {"kind": "factscore.factscorer", "output": sha256(path)}
    judged = facts_judged(records, facts, OFFICIAL, identity)
    write_judged(folder, name, judged, about())
    return judged
