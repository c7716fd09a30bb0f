"""A small run through the Trainer, as a program: `scaled.py BASE ROWS OUT JSON`, alone or under `accelerate launch`.

JSON has the tables `config` and `scale`. The main process prints the losses of the log.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trained import config

from selfrag.training.run import rows_of
from selfrag.training.scale import Trained, fit_scaled
from selfrag.training.settings import Scale


def main(base: str, rows: str, out: str, settings: str) -> Trained:
    """Run and save what came out."""
    from selfrag.training.export import save_adapter, save_checkpoint

    tables = json.loads(settings)
    chosen = config(**tables.get("config", {}))
    trained = fit_scaled(
        rows_of(Path(rows), chosen), Path(base), Path(out) / "run", chosen, Scale(**tables.get("scale", {}))
    )
    if trained.main and not (Path(out) / "product").exists():
        (save_adapter if chosen.method == "lora" else save_checkpoint)(
            trained.trainee, Path(out) / "product", trained.state
        )
    return trained


if __name__ == "__main__":
    main(*sys.argv[1:])
