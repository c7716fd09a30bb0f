"""`scaled.py` with the model in shards, on CPU processes over gloo: the same arguments, started by torchrun.

accelerate cuts models into shards on accelerators only. Here it is told what it would find there; all else, FSDP2 or
DeepSpeed, transformers' Trainer and our code, is what runs on GPUs.
"""

from __future__ import annotations

import sys
from typing import Any

import scaled
import torch
from accelerate.state import DistributedType, PartialState

_PLAIN = PartialState.__init__


def _as_on_gpus(state: PartialState, *args: Any, **options: Any) -> None:
    _PLAIN(state, *args, **options)
    shared = PartialState._shared_state
    if shared.get("distributed_type") is DistributedType.MULTI_CPU:
        shared["distributed_type"] = DistributedType.MULTI_GPU
    if torch.distributed.is_initialized():  # DeepSpeed began it, and accelerate saw no device
        rank = torch.distributed.get_rank()
        shared |= {"num_processes": torch.distributed.get_world_size(), "device": torch.device("cpu")}
        shared |= {"process_index": rank, "local_process_index": rank}


if __name__ == "__main__":
    PartialState.__init__ = _as_on_gpus
    scaled.main(*sys.argv[1:])
