"""The fourth stage of the demo model: rows that a critic wrote (D_gen), with annotated ones so that these stay known.

Left out of D_gen are rows that continue after an irrelevant or contradicting passage. Their outputs come from the pair,
not from the passage: in the paper's mixture they teach a model of 7B to answer from memory. A model of 135M parameters
has little of it, and learns from the annotated rows to say that the passage does not answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scripts.demo_model.demo_rows.mixture import STAGES, describe, set_aside
from selfrag.common.errors import UserError
from selfrag.common.jsonl import write_jsonl
from selfrag.common.provenance import commit, sha256, versions
from selfrag.reflection.labels import ISREL, ISSUP
from selfrag.training.rows import TargetToken, TrainingRow, read_rows, write_rows

UNGROUNDED = frozenset({ISREL.tokens[1], ISSUP.tokens[2]})
"""`[Irrelevant]` and `[No support / Contradictory]`."""


SEED = 2313
"""Of the choice of annotated rows, and of the order."""
REMEMBERED = 1200
"""Rows of the stage before that go with those of the critic, at most."""


def mix(
    written: Iterable[TrainingRow],
    annotated: Sequence[TrainingRow],
    most: int,
) -> tuple[TrainingRow, ...]:
    """Return rows of D_gen that stay with their passages, and a sample of the annotated ones, shuffled.

    Instructions that the annotated stages set aside are set aside here too.
    """
    chance = random.Random(SEED)  # noqa: S311 - no cryptography
    kept = [
        row
        for row in written
        if grounded(row) and not set_aside(row.instruction, STAGES[-1])
    ]
    kept += chance.sample(annotated, min(most, len(annotated)))
    chance.shuffle(kept)
    return tuple(kept)


def grounded(row: TrainingRow) -> bool:
    """Return whether no passage of the row is irrelevant, and none contradicts what follows it."""
    return not any(
        isinstance(part, TargetToken) and part.token in UNGROUNDED
        for part in row.target
    )


def make(
    dgen: Path, annotated: Path, out: Path, most: int = REMEMBERED
) -> dict[str, Any]:
    """Write `rows.jsonl` and a manifest into `out`, and return the manifest.

    Args:
        dgen: folder that `critic augment` wrote.
        annotated: folder of the stage before.
        out: folder of this stage.
        most: rows of the stage before, at most.

    Raises:
        UserError: a file is missing or bad, or no row of D_gen is left.
    """
    files = {"dgen": dgen / "rows.jsonl", "annotated": annotated / "rows.jsonl"}
    written = list(read_rows(files["dgen"]))
    rows = mix(written, list(read_rows(files["annotated"])), most)
    taken = len({row.id for row in written} & {row.id for row in rows})
    if not taken:
        raise UserError(
            f"{files['dgen']}: every row has an irrelevant or contradicting passage, or is set aside"
        )
    write_rows(out / "rows.jsonl", rows)
    manifest = {
        "remembered": {"seed": SEED, "annotated": most},
        "commit": commit(),
        "versions": versions(("selfrag",)),
        "sources": {name: sha256(file) for name, file in files.items()},
        "written_by_critic": {"rows": len(written), "taken": taken},
        "train": describe(rows),
    }
    write_jsonl(out / "manifest.json", [manifest])
    return manifest
