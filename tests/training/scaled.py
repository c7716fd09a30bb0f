"""A small run as a program: `scaled.py BASE ROWS OUT JSON`, alone or, with the model in shards, under torchrun.

JSON has the tables `config` and `scale`; without `scale` it is the loop for one process. accelerate cuts models into
shards on accelerators only. Under torchrun it is told what it would find there; all else, FSDP2 or DeepSpeed,
transformers' Trainer and our code, is what runs on GPUs.
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate.state import DistributedType, PartialState
from trained import config

from selfrag.training.export import save_adapter, save_checkpoint
from selfrag.training.job import trained
from selfrag.training.run import rows_of
from selfrag.training.settings import Scale

_PLAIN = PartialState.__init__


def _as_on_gpus(state, *args, **options):
    _PLAIN(state, *args, **options)
    shared = PartialState._shared_state
    if shared.get("distributed_type") is DistributedType.MULTI_CPU:
        shared["distributed_type"] = DistributedType.MULTI_GPU
    # DeepSpeed began it, and accelerate saw no device
    if torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
        shared |= {
            "num_processes": torch.distributed.get_world_size(),
            "device": torch.device("cpu"),
        }
        shared |= {"process_index": rank, "local_process_index": rank}


def main(base, rows, out, settings):
    """Run and save what came out."""
    tables = json.loads(settings)
    chosen = config(**tables["config"])
    scale = Scale(**tables["scale"]) if "scale" in tables else None
    found = trained(rows_of(Path(rows), chosen), Path(base), out / "run", chosen, scale)
    if found is not None and not (out / "product").exists():
        save = save_adapter if chosen.method == "lora" else save_checkpoint
        save(found.trainee, out / "product", found.state)


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:
        PartialState.__init__ = _as_on_gpus
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
