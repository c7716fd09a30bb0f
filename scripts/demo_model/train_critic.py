"""Fine-tune the demo critic: LoRA and reflection rows on SmolLM2-135M-Instruct. Resumes by itself when started again.

    python scripts/demo_model/train_critic.py --data DATA --out RUN

DATA is a JSONL file of labelled cases, or a folder that holds train/critic.jsonl.gz. RUN/model is the critic that
`critic augment` and `critic eval` load; ship.py puts RUN/adapter into the package. A run with --start begins
with an earlier one, or with an adapter, with most rows where the first critics were weak (IsRel). The packaged critic
had no such run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from critic.student.settings import CRITIC, CriticConfig
from critic.student.training import train_critic
from scripts.command import command
from selfrag.loading import resolve_model
from selfrag.training.recipes import read_recipe
from selfrag.training.settings import Lora

# Every row of the two hard judgments, some of the two easy ones. A narrow adapter has room in the package; its product
# is scaled up, so that three pairs move the weights about as fast as sixteen at scale 2.
CONFIG = CriticConfig(
    per_label={"Retrieve": 400, "IsRel": None, "IsSup": None, "IsUse": 400},
    training=replace(read_recipe("cpu", CRITIC).config, lora=Lora(rank=3, alpha=12.0)),
)
"""An hour on two cores."""
FURTHER = CriticConfig(
    per_label={"Retrieve": 100, "IsRel": 1500, "IsSup": 250, "IsUse": 250},
    training=replace(
        CONFIG.training, seed=31, learning_rate=5e-4, row_learning_rate=1e-3
    ),
)
"""Some fifty minutes."""


@command
def main(
    *, data: Path, base: str = "demo-base", start: Path | None = None, out: Path
) -> None:
    """Train and export.

    Args:
        data: file of labelled cases, or folder with train/.
        base: base checkpoint.
        start: earlier run, or adapter, to continue from.
        out: directory of the run, the adapter and the checkpoint.
    """
    config = CONFIG if start is None else FURTHER
    print(train_critic(data, resolve_model(base), out, config, start=start))


if __name__ == "__main__":
    main()
