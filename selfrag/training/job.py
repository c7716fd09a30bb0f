"""A training job: rows, base model and recipe in; run, adapter or checkpoint, loss plot and model card out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.errors import UserError, require
from selfrag.training.run import fit, rows_of
from selfrag.training.settings import Scale, TrainingConfig

RUN, ADAPTER, MODEL = "run", "adapter", "model"
"""Folders below a job's own: the run's journal, and what came out."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, from what, and where to.

    Attributes:
        rows: training rows, JSONL.
        base: directory of the base checkpoint.
        out: folder of the job.
        config: what decides the result.
        scale: for the Trainer; None for the CPU loop.
        recipe: name of the recipe, for the model card.
        start: earlier stage to begin with: folder of a run, or of an adapter.
        leave_long: leave rows out whose target does not fit; else they are an error.
    """

    rows: Path
    base: Path
    out: Path
    config: TrainingConfig
    scale: Scale | None = None
    recipe: str = "cpu"
    start: Path | None = None
    leave_long: bool = False

    @property
    def run_dir(self) -> Path:
        """Manifest, log, checkpoints and plot."""
        return self.out / RUN

    @property
    def product(self) -> Path:
        """The adapter, or the checkpoint of a model trained in full."""
        return self.out / (ADAPTER if self.config.method == "lora" else MODEL)


def run(job: Job) -> Path | None:
    """Train, or go on, and write what comes out. Started again after its end, it only writes what is missing.

    Returns:
        The product; None in a process that is not the main one.

    Raises:
        UserError: as `run.fit` and `scale.run.fit_scaled`.
    """
    from selfrag.training.export import save_adapter, save_checkpoint

    require("matplotlib", extra="train")  # for the plot at the end; better said before hours of training
    prepare = rows_of(job.rows, job.config, leave_long=job.leave_long)
    state: Any = None
    if job.scale is None:
        trainee = fit(prepare, job.base, job.run_dir, job.config, start=job.start)
    else:
        from selfrag.training.scale import fit_scaled

        trained = fit_scaled(prepare, job.base, job.run_dir, job.config, job.scale, start=job.start)
        if not trained.main:
            return None
        trainee, state = trained.trainee, trained.state
    if not job.product.exists():
        save = save_adapter if job.config.method == "lora" else save_checkpoint
        save(trainee, job.product, state)
    describe(job)
    return job.product


def describe(job: Job) -> None:
    """The loss plot and the model card of a finished run, from its journal."""
    from selfrag.training import card
    from selfrag.training.card import plot_log

    plot_log(job.run_dir / "log.jsonl", job.run_dir / "loss.png")
    product = card.ADAPTER if job.config.method == "lora" else card.CHECKPOINT
    card.write_card(job.run_dir, job.product, product, base=base_name(job.base), recipe=job.recipe)


def base_name(base: Path) -> str:
    """What to call the base model in public: its name on the hub, or the last part of its path, never the path."""
    place = base.resolve()
    name = place.name
    if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
        name = place.parent.parent.name.removeprefix("models--").replace("--", "/")
    if not name:
        raise UserError(f"{base}: give the directory of a checkpoint")
    return name
