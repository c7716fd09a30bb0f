"""Where and how a run through the Trainer computes. What it learns is in `TrainingConfig`. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from retrieval.checks import choice, whole

Sharding = Literal["none", "fsdp", "zero3"]
Attention = Literal["auto", "packed", "sdpa", "flash_attention_2"]


@dataclass(frozen=True, slots=True)
class Scale:
    """Settings of the machine, not of the method: another value gives the same loss up to rounding.

    Attributes:
        sharding: `none` keeps the whole model in each process; `fsdp` and `zero3` cut it into shards.
        micro_tokens: tokens that one process computes at once, padding-free; memory goes by it. A longer row is alone.
        checkpointing: recompute activations in backward: about a third more time, far less memory.
        attention: `auto` takes FlashAttention 2 where it is installed on a GPU, else `packed`, our own.
        loader_workers: processes that lay out rows ahead of the step; 0 for none.
    """

    sharding: Sharding = "none"
    micro_tokens: int = 8192
    checkpointing: bool = False
    attention: Attention = "auto"
    loader_workers: int = 0

    def __post_init__(self) -> None:
        choices = {
            "sharding": (self.sharding, ("none", "fsdp", "zero3")),
            "attention": (self.attention, ("auto", "packed", "sdpa", "flash_attention_2")),
        }
        for name, (value, known) in choices.items():
            choice(name, value, known)
        whole("micro_tokens", self.micro_tokens)
        whole("loader_workers", self.loader_workers, 0)
