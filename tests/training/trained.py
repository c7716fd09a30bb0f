"""Rows and settings for runs on tiny random models: a few steps, seconds."""

import json
from contextlib import contextmanager

import pytest
import torch
from lettered import passage, row

from selfrag.reflection.labels import GROUPS
from selfrag.training.journal import TrainingJournal
from selfrag.training.rows import write_rows
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


def write(path, rows=ROWS):
    """The rows as a file."""
    write_rows(path, rows)
    return path


def config(**changes):
    """A small LoRA run, in bf16 on every machine; keyword arguments replace its settings."""
    settings = {
        "lora": Lora(rank=4, alpha=8),
        "step_tokens": 300,
        "epochs": 4,
        "seed": 3,
    }
    settings["precision"] = "bf16"
    return TrainingConfig(**{**settings, **changes})  # type: ignore[arg-type]


def train(rows, base, run_dir, settings, start=None):
    """Train on a file of rows by the loop for one process."""
    return fit(rows_of(rows, settings), base, run_dir, settings, start=start)


def log(run_dir):
    """The records of a run."""
    return [
        json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()
    ]


def losses(run_dir):
    """Loss of each step of a run."""
    return [record["loss"] for record in log(run_dir)]


def same(one, other):
    """Whether two models have the same trained numbers, bit for bit."""
    return all(
        torch.equal(value, other.parameters[name])
        for name, value in one.parameters.items()
    )


@contextmanager
def interrupted(monkeypatch, step):
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
