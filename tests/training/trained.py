"""Rows and settings for runs on tiny random models: a few steps, seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lettered import passage, row

from selfrag.reflection.labels import GROUPS
from selfrag.training.journal import Journal
from selfrag.training.rows import Row, write_rows
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


def write(path: Path, rows: list[Row] = ROWS) -> Path:
    """The rows as a file."""
    write_rows(path, rows)
    return path


def config(**changes: object) -> TrainingConfig:
    """A small LoRA run, in bf16 on every machine; keyword arguments replace its settings."""
    settings: dict[str, object] = {"lora": Lora(rank=4, alpha=8), "step_tokens": 300, "epochs": 4, "seed": 3}
    settings["precision"] = "bf16"
    return TrainingConfig(**{**settings, **changes})  # type: ignore[arg-type]


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Ctrl-C after the record of this step."""
    original = Journal.log

    def log_and_stop(self, record):
        original(self, record)
        if record["step"] == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "log", log_and_stop)
        with pytest.raises(KeyboardInterrupt):
            yield
