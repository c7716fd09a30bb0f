"""Make the demo model's training rows.

    python scripts/demo_model/make_demo_rows.py --data DATA --out runs/demo/rows
    selfrag index build DATA/corpus/wiki-mix.jsonl.gz -o runs/index
    critic augment DATA/train/pairs.jsonl --critic demo --index runs/index --gold-passages join --initial output \
        --choice graded --balance paper --seed 20 --limit 2560 -o runs/dgen
    python scripts/demo_model/make_demo_rows.py --data DATA --dgen runs/dgen --out runs/demo/rows

Pairs of some data bring the passage that their annotators saw, and the corpus holds the evidence of only some of them,
so these passages join the candidates. The labelled cases that the critic learned from always show an output, so the
first judgment sees it too (Algorithm 3).

Folders 1 to 3 are annotated rows, and so are 5 and 6. Folder 4, made when D_gen is there, has rows that a critic wrote.
train_demo.py says which stage learns which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.command import command
from scripts.demo_model.demo_rows import distilled
from scripts.demo_model.demo_rows.mixture import LAST, STAGES, make


@command
def main(*, data: Path, dgen: Path | None = None, out: Path) -> None:
    """Make the rows of all stages.

    Args:
        data: folder with train/, corpus/ and intrinsics/.
        dgen: folder that critic augment wrote.
        out: rows.jsonl, heldout.jsonl and manifest.json go to OUT/1, OUT/2 ..
    """
    for stage, mixture in (*enumerate(STAGES, 1), *enumerate(LAST, len(STAGES) + 2)):
        manifest = make(data, out / str(stage), mixture)
        _show(stage, manifest, "train", "heldout")
    if dgen is not None:
        annotated = out / str(len(STAGES))
        last = out / str(len(STAGES) + 1)
        manifest = distilled.make(dgen, annotated, last)
        _show(len(STAGES) + 1, manifest, "written_by_critic", "train")


def _show(stage: int, manifest: Mapping[str, Any], *names: str) -> None:
    counts = {name: manifest[name] for name in names}
    print(json.dumps({"stage": stage, **counts}, indent=1))


if __name__ == "__main__":
    main()
