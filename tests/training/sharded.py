"""A model in FSDP2 shards on CPUs, as a program under torchrun: `sharded.py BASE ROWS METHOD OUT`.

accelerate leaves FSDP to GPUs, so this applies `fully_shard` as accelerate does: each layer, then the
root. It checks what our part must stand: the loss function through sharded parameters, frozen ones among trained ones.
The main process writes the loss and the norm of every gradient.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.distributed import all_reduce, destroy_process_group, get_rank, get_world_size, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from trained import config

from selfrag.training.loss import target_losses
from selfrag.training.model import load_trainee
from selfrag.training.run import plan, rows_of
from selfrag.training.scale.loads import Loads


def main(base: str, rows: str, method: str, out: str) -> None:
    """One step's gradient."""
    init_process_group("gloo")
    settings = config(method=method, step_rows=3, max_steps=1)
    trainee = load_trainee(Path(base), method=settings.method, lora=settings.lora, dtype=torch.float32, plain=True)
    prepared = rows_of(Path(rows), settings)(trainee.tokenizer)
    loads = Loads(prepared.examples, plan(prepared, settings), settings.weighting, get_world_size(), 90)
    mesh = init_device_mesh("cpu", (get_world_size(),))
    for layer in trainee.causal.base_model.layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(trainee.model, mesh=mesh)

    total = torch.zeros(())
    for turn in range(loads.accumulation):
        load = loads[turn * get_world_size() + get_rank()]
        losses, _ = target_losses(model, load.pack)
        loss = (losses * load.pack.weights).sum() / load.total * get_world_size()
        loss.backward()
        total += loss.detach() / get_world_size()
    all_reduce(total)
    norms = {
        name: float(parameter.grad.full_tensor().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    if get_rank() == 0:
        Path(out).write_text(json.dumps({"loss": float(total), "norms": norms}))
    destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
