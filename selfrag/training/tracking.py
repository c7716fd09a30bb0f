"""Sends the log of a training run to TensorBoard or Weights & Biases, while it runs or afterwards."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from retrieval.atomic import writing
from selfrag.errors import UserError, require
from selfrag.training.journal import recorded

Tracker = Literal["tensorboard", "wandb"]
Send: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Takes the figures of one step, by name."""


def board(tracker: Tracker, run_dir: Path, name: str) -> AbstractContextManager[Send]:
    """Open a tracker for a run; what is left is written at the end of the block.

    Raises:
        UserError: its package is not installed, it cannot be written, or refuses.
    """
    return _tensorboard(run_dir / "tensorboard") if tracker == "tensorboard" else _wandb(run_dir, name)


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Send]:
    """Event files in a folder, which is made anew."""
    require("tensorboard", extra="tracking")
    from torch.utils.tensorboard import SummaryWriter

    with writing(folder):
        shutil.rmtree(folder, ignore_errors=True)
        writer: Any = SummaryWriter(str(folder))

    def send(step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    with closing(writer):
        yield send


@contextmanager
def _wandb(run_dir: Path, name: str) -> Iterator[Send]:
    """A run of the project `selfrag`; `WANDB_MODE=offline` and the other variables of wandb are respected."""
    wandb: Any = require("wandb", extra="tracking")
    try:
        run = wandb.init(project="selfrag", name=name, dir=str(run_dir), config=recorded(run_dir))
    except wandb.Error as error:
        raise UserError(f"Weights & Biases: {' '.join(str(error).split())[:300]}; see `wandb login`") from error
    try:
        yield lambda step, figures: run.log(dict(figures), step=step)
    finally:
        run.finish()


def run_directory(folder: Path) -> Path:
    """The folder with the log: of a run itself, or of what `selfrag train` and `critic train` write.

    Raises:
        UserError: there is none yet.
    """
    for found in (folder, folder / "run"):
        if (found / "manifest.json").is_file():
            return found
    raise UserError(f"{folder} holds no training run; give the folder of --out, after the run has begun")


def track(run_dir: Path, send: Send, *, follow: bool = False, wait: Callable[[], None] | None = None) -> int:
    """Send the log of a run; returns the last step that was sent, 0 for none.

    With `follow` it waits for further steps, until interrupted; steps that a continued run does again are sent once.
    `wait` is called where no step is left; it sleeps two seconds by default.

    Raises:
        UserError: a line of the log is none.
    """
    last = 0
    for record in _lines(run_dir / "log.jsonl", follow, wait or (lambda: time.sleep(2))):
        try:
            step, figures = int(record["step"]), figures_of(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{run_dir / 'log.jsonl'}: no line of a training log ({error!r:.80})") from error
        if step > last:
            send(step, figures)
            last = step
    return last


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of the log, under the names that they have on a board; undefined ones are left out."""
    found = {
        "tokens_per_second": record["tokens"] / record["seconds"] if record.get("seconds") else None,
        "learning_rate/share_of_peak": record.get("rate"),
        "gradient_norm": record.get("norm"),
        **_losses("train", record),
        **_losses("held_out", record.get("validation") or {}),
    }
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _losses(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {f"{part}/loss": values.get("loss")}
    for group, figures in (values.get("groups") or {}).items():
        found |= {f"{part}/loss/{group}": figures["loss"], f"{part}/accuracy/{group}": figures["accuracy"]}
    return found


def _lines(log: Path, follow: bool, wait: Callable[[], None]) -> Iterator[Any]:
    """Complete lines as JSON; from the beginning again where a continued run has cut its log."""
    place = 0
    while True:
        if log.exists():
            if log.stat().st_size < place:
                place = 0
            with log.open("rb") as file:
                file.seek(place)
                whole, _, _ = file.read().rpartition(b"\n")
            place += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{log}: a line is no JSON; the log is damaged") from error
        if not follow:
            return
        wait()
