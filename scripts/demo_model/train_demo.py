"""Fine-tune the demo model: LoRA and reflection rows on SmolLM2-135M-Instruct. Resumes by itself when started again.

    python scripts/demo_model/make_demo_rows.py --data DATA --dgen DGEN --out runs/demo/rows
    python scripts/demo_model/train_demo.py --rows runs/demo/rows --base demo-base --out runs/demo/train

Three stages learn annotated rows, the fourth rows that a critic wrote, and the fifth annotated ones again, since a
critic easily accepts passages on topic without an answer, and claims are at chance after it. The fifth is three runs
from the fourth, on three mixtures, and the mean of their weights. After the third and the fifth, held-out rows set the
row of `[Relevant]` (relevance_calibration.py). OUT/annotated is the adapter of three stages, OUT/adapter that of five,
which the package ships, each with what it was made from and by in training.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from scripts.command import command
from selfrag.loading import resolve_model
from selfrag.training.model import Trainee
from selfrag.training.rows import TrainingExample
from selfrag.training.run import fit, layout_for, rows_of
from selfrag.training.settings import TrainingConfig, Weighting

# An hour, 50 and 30 minutes on two cores (some 390 tokens a second). The first stage stops after 470 of the 822 steps
# of its epoch; every stretch of it holds all kinds of rows in proportion: the cut changes how much is seen, not what.
ANNOTATED = (
    TrainingConfig(seed=20, max_steps=470, max_length=900, max_passage=220),
    TrainingConfig(
        seed=21,
        learning_rate=6e-4,
        row_learning_rate=1e-3,
        max_length=900,
        max_passage=256,
    ),
    TrainingConfig(
        seed=22,
        learning_rate=5e-4,
        row_learning_rate=1e-3,
        max_length=900,
        max_passage=256,
    ),
)
# The critic's weak points count less: of IsRel, annotated rows know more; on people's IsUse tf-idf is as good.
DISTILLED = TrainingConfig(
    seed=23,
    learning_rate=4e-4,
    row_learning_rate=5e-4,
    max_length=1600,
    max_passage=256,
    weighting=Weighting(isrel=2.0, isuse=0.0),
)
# Rather more than half of an epoch of each; their weights are averaged.
_AGAIN = TrainingConfig(
    seed=24, learning_rate=4e-4, row_learning_rate=5e-4, max_length=900, max_passage=256
)
AGAIN = tuple(replace(_AGAIN, max_steps=steps) for steps in (130, 200, 220))

# The adapters; the stages that lead to each, one after the other; and the runs from the last of them that are averaged.
# Each has the folder of its rows, as make_demo_rows.py numbers them, and its settings. The share: of passages on topic
# that do not answer, at most so many may be called Relevant.
PARTS = (
    ("annotated", tuple(enumerate(ANNOTATED, 1)), (), 0.43),
    ("adapter", ((4, DISTILLED),), tuple(zip((3, 5, 6), AGAIN, strict=True)), 0.48),
)

# Held-out rows whose passages answer, or are on topic and do not.
CALIBRATING = ("gold", "unanswerable", "answer_removed")
MADE = "training.json"


@command
def main(*, rows: Path, base: str = "demo-base", out: Path) -> None:
    """Train and export.

    Args:
        rows: folder that make_demo_rows.py wrote.
        base: demo-base, or directory of a checkpoint.
        out: directory of the runs, one a stage, and of the adapters.
    """
    print(train_all(rows, resolve_model(base), out))


def train_all(rows: Path, base: Path, out: Path) -> Path | None:
    """Train all stages, and return the last adapter's folder."""
    history: list[dict[str, Any]] = []
    start: Path | None = None
    number = 0
    for name, stages, averaged, most_taken in PARTS:
        trainees = []
        for folder, config in (*stages, *averaged):
            number += 1
            prepare = rows_of(rows / str(folder) / "rows.jsonl", config)
            trainees.append(fit(prepare, base, out / str(number), config, start=start))
            history.append(
                json.loads(
                    (out / str(number) / "manifest.json").read_text(encoding="utf-8")
                )
            )
            if len(trainees) <= len(stages):
                start = out / str(number)
        trainee = mean(trainees[len(stages) :] or trainees[-1:])
        start = out / name
        if not start.exists():
            _export(trainee, rows, start, history, most_taken)
        made = json.loads((start / MADE).read_text(encoding="utf-8"))
        history = [*made["stages"], {"calibration": made["calibration"]}]
    return start


def mean(trainees: Sequence[Trainee]) -> Trainee:
    """Return the first trainee, with the mean of all trainees' trained parameters (model soups, arXiv 2203.05482)."""
    parameters = [dict(trainee.model.named_parameters()) for trainee in trainees]
    with torch.no_grad():
        for name, parameter in parameters[0].items():
            if parameter.requires_grad:
                parameter.copy_(
                    torch.stack([each[name] for each in parameters]).mean(dim=0)
                )
    return trainees[0]


def calibrating_examples(
    files: list[Path], tokenizer: Any
) -> Iterator[TrainingExample]:
    """Yield the held-out rows that count, laid out as in training."""
    from tqdm import tqdm

    from selfrag.training.rows import read_rows

    layout = layout_for(tokenizer, ANNOTATED[-1])
    rows = [
        row
        for file in files
        for row in read_rows(file)
        if row.source.rpartition("/")[2] in CALIBRATING
    ]
    for row in tqdm(rows, desc="calibrating", disable=None):
        yield layout.example(row)


def _export(
    trainee: Any,
    rows: Path,
    adapter: Path,
    stages: list[dict[str, Any]],
    most_taken: float,
) -> None:
    from scripts.demo_model.relevance_calibration import restrain_relevance
    from selfrag.training.export import save_adapter

    held_out = [
        rows / str(folder) / "heldout.jsonl" for folder in range(1, 1 + len(ANNOTATED))
    ]
    examples = calibrating_examples(held_out, trainee.tokenizer)
    calibration = asdict(restrain_relevance(trainee, examples, most_taken=most_taken))
    print(calibration)
    made = {"stages": stages, "calibration": calibration}
    save_adapter(trainee, adapter, beside={MADE: made})


if __name__ == "__main__":
    main()
