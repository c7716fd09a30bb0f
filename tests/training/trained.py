"""Rows and settings for runs on tiny random models: a few steps, seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lettered import passage, row

from selfrag.reflection.labels import GROUPS
from selfrag.training.journal import TrainingJournal
from selfrag.training.model import Trainee
from selfrag.training.rows import TrainingRow, write_rows
from selfrag.training.run import fit, rows_of
from selfrag.training.settings import Lora, TrainingConfig

EVERY_TOKEN = row(
    *[token for labels in GROUPS for token in labels.tokens],
    passage("The capital of France is Paris."),
    "It is Paris.",
    instruction="Which tokens are there?",
    id="every",
)
"""A row in which each of the 15 tokens is read and predicted."""

ROWS = [
    EVERY_TOKEN,
    row(
        "[Retrieval]", passage("Water boils at 100 degrees."), "[Relevant]", "At 100 degrees.", "[Fully supported]",
        "[Utility:5]", instruction="When does water boil?", id="b",
    ),
    row("[No Retrieval]", "Hello!", "[Utility:5]", instruction="Say hello.", id="c"),
]  # fmt: skip


def write(path: Path, rows: list[TrainingRow] = ROWS) -> Path:
    """The rows as a file."""
    write_rows(path, rows)
    return path


def config(**changes: object) -> TrainingConfig:
    """A small LoRA run, in bf16 on every machine; keyword arguments replace its settings."""
    settings: dict[str, object] = {
        "lora": Lora(rank=4, alpha=8),
        "step_tokens": 300,
        "epochs": 4,
        "seed": 3,
    }
    settings["precision"] = "bf16"
    return TrainingConfig(**{**settings, **changes})  # type: ignore[arg-type]


def train(
    rows: Path,
    base: Path,
    run_dir: Path,
    settings: TrainingConfig,
    start: Path | None = None,
) -> Trainee:
    """Train on a file of rows by the loop for one process."""
    return fit(rows_of(rows, settings), base, run_dir, settings, start=start)


def log(run_dir: Path) -> list[dict[str, Any]]:
    """The records of a run."""
    return [
        json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()
    ]


def losses(run_dir: Path) -> list[float]:
    """Loss of each step of a run."""
    return [record["loss"] for record in log(run_dir)]


def same(one: Trainee, other: Trainee) -> bool:
    """Whether two models have the same trained numbers, bit for bit."""
    return all(
        torch.equal(value, other.parameters[name])
        for name, value in one.parameters.items()
    )


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Ctrl-C after the record of this step."""
    original = TrainingJournal.log

    def log_and_stop(self, record):
        original(self, record)
        if record["step"] == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingJournal, "log", log_and_stop)
        with pytest.raises(KeyboardInterrupt):
            yield
