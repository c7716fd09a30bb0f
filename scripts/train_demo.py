"""Fine-tune the demo model: LoRA and reflection rows on SmolLM2-135M-Instruct. Resumes by itself when started again.

    python scripts/make_demo_rows.py --data DATA --dgen DGEN/rows --out runs/demo/rows
    python scripts/train_demo.py --rows runs/demo/rows --base demo-base --out runs/demo/train
    python scripts/train_demo.py --rows runs/demo/rows --out runs/demo/train --start ADAPTER   # the last two stages

Three stages learn annotated rows, the fourth rows that a critic wrote, and the fifth annotated ones again, since a
critic easily accepts passages on topic without an answer. After the third and the fifth, held-out rows set the row of
`[Relevant]` (relevance_calibration.py). OUT/annotated is the adapter of three stages, OUT/adapter the one that the
package ships, each with what it was made from and by in training.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from command import command
from selfrag.errors import UserError
from selfrag.loading import resolve_model
from selfrag.training.rows import Example
from selfrag.training.run import layout_for, train
from selfrag.training.settings import TrainingConfig, Weighting

# An hour, 50 and 30 minutes on two cores (some 390 tokens a second). The first stage stops after 470 of the 822 steps
# of its epoch; every stretch of it holds all kinds of rows in proportion: the cut changes how much is seen, not what.
ANNOTATED = (
    TrainingConfig(seed=20, max_steps=470, max_length=900, max_passage=220),
    TrainingConfig(seed=21, learning_rate=6e-4, row_learning_rate=1e-3, max_length=900, max_passage=256),
    TrainingConfig(seed=22, learning_rate=5e-4, row_learning_rate=1e-3, max_length=900, max_passage=256),
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
# Not quite half of the third stage's rows, in another order.
AGAIN = TrainingConfig(
    seed=24, max_steps=130, learning_rate=4e-4, row_learning_rate=5e-4, max_length=900, max_passage=256
)

# Passages that answer, and passages on topic that do not; of these, at most so many may be called Relevant.
CALIBRATING = ("gold", "unanswerable", "answer_removed")
MOST_TAKEN = 0.43
MADE = "training.json"


@command
def main() -> int:
    """Read the command line, train, export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="folder that make_demo_rows.py wrote")
    parser.add_argument("--base", default="demo-base", help="demo-base (default), or directory of a checkpoint")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory of the runs, one a stage, and of the adapters"
    )
    parser.add_argument("--start", type=Path, help="adapter of the first three stages, with its training.json")
    arguments = parser.parse_args()
    base = resolve_model(arguments.base)
    start = arguments.start or annotated(arguments.rows, base, arguments.out)
    print(distilled(arguments.rows, base, arguments.out, start))
    return 0


def annotated(rows: Path, base: Path, out: Path) -> Path:
    """The stages of annotated rows, one after the other. Returns the adapter's folder."""
    start = None
    for stage, config in enumerate(ANNOTATED, 1):
        trainee = train(rows / str(stage) / "rows.jsonl", base, out / str(stage), config, start=start)
        start = out / str(stage)
    return _exported(trainee, rows, out / "annotated", [_manifest(out, stage) for stage in _stages()])


def distilled(rows: Path, base: Path, out: Path, start: Path) -> Path:
    """The critic's rows on top of the adapter `start`, and annotated rows again. Returns the adapter's folder."""
    try:
        before = json.loads((start / MADE).read_text(encoding="utf-8"))
        stages = [*before["stages"], {"calibration": before["calibration"]}]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{start / MADE} does not say how the adapter was made: {error}") from error
    strict = len(ANNOTATED)
    written, again = strict + 1, strict + 2
    train(rows / str(written) / "rows.jsonl", base, out / str(written), DISTILLED, start=start)
    trainee = train(rows / str(strict) / "rows.jsonl", base, out / str(again), AGAIN, start=out / str(written))
    return _exported(trainee, rows, out / "adapter", [*stages, _manifest(out, written), _manifest(out, again)])


def calibrating_examples(files: list[Path], tokenizer: Any) -> Iterator[Example]:
    """The held-out rows that count, laid out as in training."""
    from tqdm import tqdm

    from selfrag.training.rows import read_rows

    layout = layout_for(tokenizer, ANNOTATED[-1])
    rows = [row for file in files for row in read_rows(file) if row.source.rpartition("/")[2] in CALIBRATING]
    for row in tqdm(rows, desc="calibrating", disable=None):
        yield layout.example(row)


def _exported(trainee: Any, rows: Path, adapter: Path, stages: list[dict[str, Any]]) -> Path:
    from relevance_calibration import restrain_relevance
    from selfrag.training.export import save_adapter

    if adapter.exists():
        return adapter
    held_out = [rows / str(stage) / "heldout.jsonl" for stage in _stages()]
    examples = calibrating_examples(held_out, trainee.tokenizer)
    calibration = asdict(restrain_relevance(trainee, examples, most_taken=MOST_TAKEN))
    print(calibration)
    return save_adapter(trainee, adapter, beside={MADE: {"stages": stages, "calibration": calibration}})


def _stages() -> range:
    return range(1, len(ANNOTATED) + 1)


def _manifest(out: Path, stage: int) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((out / str(stage) / "manifest.json").read_text(encoding="utf-8"))
    return manifest


if __name__ == "__main__":
    sys.exit(main())
