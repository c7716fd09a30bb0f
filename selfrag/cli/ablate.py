"""`selfrag ablate`: arguments in, tables out. The rows and their figures are `selfrag.experiments`' work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.options import Choices
from selfrag.cli.sweep import (
    Changes,
    EngineName,
    Files,
    IndexName,
    LimitOption,
    ModelName,
    Out,
    Redecode,
    RetryFailed,
    Seed,
    show,
    written,
)
from selfrag.errors import require


def ablate(
    files: Files,
    out: Out,
    *,
    changes: Changes = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="run folder of another system over the same items, for reliance on memory; repeatable"),
    ] = None,
    model: ModelName = "demo",
    engine: EngineName = None,
    index: IndexName = None,
    limit: LimitOption = None,
    choices: Choices = "letters",
    seed: Seed = 0,
    redecode: Redecode = True,
    retry_failed: RetryFailed = False,
) -> None:
    """The paper's inference ablations (Table 3a), its policy against the published code's, reliance on memory (C.1)."""
    from selfrag.evaluation.systems import parse_settings
    from selfrag.experiments.sweeps import based

    base = parse_settings(changes or [])
    based(base)  # a bad setting is refused before a model is loaded

    require("matplotlib", extra="eval")  # for the plots at the end
    from selfrag.cli.options import quiet
    from selfrag.evaluation.presets import Given
    from selfrag.evaluation.runner import Model, Source
    from selfrag.experiments.ablations import HEAD, against_paper, reliance_rows, write_ablation
    from selfrag.experiments.ablations import ablate as run
    from selfrag.experiments.sweeps import brief, sources

    quiet()
    source = Source([Given.parse(one) for one in files], limit, seed, index, form=choices)
    found = run(
        base,
        Model(model, engine),
        source,
        out,
        baselines=baseline or [],
        redecode=redecode,
        seed=seed,
        retry_failed=retry_failed,
    )
    about = {"model": model, "engine": engine, "source": source.settings(), "files": sources(found.studies)}
    memory = [", ".join(row) for row in reliance_rows(found.reliance)] if found.reliance else []
    heading = ["", "right answers that no passage holds, in percent:"] if memory else []
    beside = [", ".join(cells) for cells in (HEAD, *against_paper(found.comparison, found.studies))]
    show(brief(found.comparison), [*beside, *heading, *memory, "", str(found.saved)])
    written(write_ablation(found, out, about))
