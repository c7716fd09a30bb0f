"""Train the demo adapters of the intrinsics: one after the other, or only those that are named. Resumes by itself.

    python scripts/demo_model/train_intrinsics.py --data DATA/intrinsics --out runs/intrinsics
    python scripts/demo_model/train_intrinsics.py --data DATA/intrinsics --out runs/intrinsics --only answerability
    python scripts/demo_model/train_intrinsics.py --data DATA/intrinsics --out runs/intrinsics --start ADAPTERS

The same for a model of 7B on a GPU: --base OWNER/MODEL --recipe paper --device cuda. Each adapter is written to
OUT/NAME/adapter; `selfrag eval intrinsics --model BASE --adapters OUT` measures them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.command import command
from selfrag.common.checks import check_choice
from selfrag.loading import resolve_model
from selfrag.training.intrinsics.job import ADAPTERS, AdapterJob, base_name, run
from selfrag.training.intrinsics.rows import STEMS
from selfrag.training.recipes import read_recipe


@command
def main(
    *,
    data: Path,
    base: str = "demo",
    out: Path,
    only: list[str] = list(STEMS),  # noqa: B006 - of the command line alone
    recipe: str = "demo",
    activated: bool = False,
    seen: Path | None = None,
    device: str | None = None,
    max_steps: int | None = None,
    start: Path | None = None,
) -> None:
    """Train, and print where the adapters are.

    Args:
        data: folder with the rows of the intrinsics.
        base: demo, directory of a checkpoint, or hub name.
        out: folder of the runs and the adapters.
        only: an intrinsic; repeatable, all five by default.
        recipe: demo, paper or a TOML file.
        activated: activated LoRA, for the transformers engine.
        seen: rows that the base was trained on; uncertainty leaves them out.
        device: of the training; the best one by default.
        max_steps: optimiser steps of each adapter at most.
        start: folder with an adapter of each name to begin with.
    """
    checkpoint = resolve_model(base)
    options: dict[str, dict[str, Any]] = {
        "--device": {"training.device": device},
        "--max-steps": {"training.max_steps": max_steps},
    }
    jobs = []
    for name in only:
        check_choice("--only", name, STEMS)
        chosen = read_recipe(recipe, ADAPTERS, name).changed(options)
        job = AdapterJob(
            intrinsic=name,
            data=data,
            base=checkpoint,
            out=out / name,
            config=chosen.config,
            selection=chosen.table("rows"),
            activated=activated,
            recipe=chosen.name,
            seen=seen,
            base_name=base_name(base),
            start=start and start / name,
        )
        jobs.append(job)
    for job in jobs:
        print(run(job))


if __name__ == "__main__":
    main()
