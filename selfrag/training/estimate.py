"""What a run will take before it starts: tokens and steps, which are exact, and memory, by a formula.

Nothing is computed and no weights are loaded. How long a run takes, its first steps tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from pathlib import Path

import torch

from selfrag.common.errors import UserError, count_of
from selfrag.common.pretrained import load, unusable
from selfrag.loading import check_base
from selfrag.training.model import DTYPES, chosen_precision
from selfrag.training.packing import StepPlan
from selfrag.training.rows import MASKED
from selfrag.training.run import PreparedRows, plan
from selfrag.training.settings import Method, Scale, TrainingConfig

_QUANTIZED = 0.55
"""Bytes of a parameter in 4 bits, with its share of the scales."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that determine cost and memory."""

    body: int  # parameters that every token passes, without the two vocabulary matrices
    vocabulary: int  # parameters of the vocabulary matrices; tied ones count once
    head: int  # parameters of the output matrix alone
    adapter: int  # parameters of LoRA pairs and token rows at the run's rank
    layers: int  # number of layers
    width: int  # of the hidden states
    inner: int  # of the feed-forward layers

    @property
    def parameters(self) -> int:
        """Return the parameters of the whole model."""
        return self.body + self.vocabulary

    def trained(self, method: Method) -> int:
        """Parameters that are trained."""
        if method == "lora":
            return self.adapter
        return self.parameters


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run takes.

    Attributes:
        steps: optimiser steps.
        tokens: tokens over the whole run.
        targets: positions with a loss over the whole run.
        largest_load: tokens that one process holds at once.
        parameters: of the model.
        trained: parameters that are trained.
        memory: bytes of one process by what they are for, calculated from the shape of the model.
    """

    steps: int
    tokens: int
    targets: int
    largest_load: int
    parameters: int
    trained: int
    memory: Mapping[str, float]

    def lines(self, passes: int) -> list[str]:
        """Return the estimate for people, a line a subject."""
        over = f"{count_of(passes, 'passes')}"
        parts = ", ".join(
            f"{name} {size / _GIB:.2f}" for name, size in self.memory.items()
        )
        return [
            f"tokens      {self.tokens} over {over}, {self.targets} of them with a loss",
            f"steps       {self.steps}, at most {count_of(self.largest_load, 'tokens')} at once a process",
            f"parameters  {self.parameters / 1e6:.1f} M, {self.trained / 1e6:.1f} M trained",
            f"memory      about {sum(self.memory.values()) / _GIB:.1f} GiB a process, by its shape ({parts})",
        ]


def estimate(
    prepared: PreparedRows,
    base_dir: Path,
    config: TrainingConfig,
    scale: Scale | None,
    *,
    processes: int = 1,
) -> RunEstimate:
    """Estimate a run.

    Raises:
        UserError: `base_dir` holds no config of a causal language model.
    """
    shape = read_shape(base_dir, config)
    steps = plan(prepared, config)
    lengths = [len(example) for example in prepared.examples]
    targets = [
        len(example) - example.labels.count(MASKED) for example in prepared.examples
    ]
    tokens = learned = 0
    for row in chain.from_iterable(chain.from_iterable(steps)):
        tokens += lengths[row]
        learned += targets[row]
    device = "cpu"
    if torch.cuda.is_available() and (scale or config.device.startswith("cuda")):
        device = "cuda"
    size = DTYPES[chosen_precision(config.precision, device)[0]].itemsize
    largest = _largest_load(steps, lengths, config, scale)
    sharded = scale is not None and scale.sharding != "none"
    return RunEstimate(
        steps=len(steps),
        tokens=tokens,
        targets=learned,
        largest_load=largest,
        parameters=shape.parameters,
        trained=shape.trained(config.method),
        memory=_memory(
            shape,
            config,
            scale,
            largest,
            learned / tokens,
            processes if sharded else 1,
            size,
        ),
    )


def read_shape(base_dir: Path, config: TrainingConfig) -> ModelShape:
    """Read the shape of a checkpoint's model from its config.

    Raises:
        UserError: there is none that transformers knows as a causal language model.
    """
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    check_base(base_dir)
    try:
        settings = load("AutoConfig", base_dir)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{base_dir} holds no causal language model: {error}"
        ) from error
    except Exception as error:  # of torch, for sizes that make no sense
        raise unusable(base_dir, error) from error
    inputs = model.get_input_embeddings().weight
    outputs = model.get_output_embeddings().weight
    tied = bool(getattr(settings, "tie_word_embeddings", False))
    vocabulary = inputs.numel() if tied else inputs.numel() + outputs.numel()
    body = sum(
        p.numel() for p in model.parameters() if p is not inputs and p is not outputs
    )
    linear = [
        m
        for m in model.modules()
        if isinstance(m, torch.nn.Linear | Conv1D) and m.weight is not outputs
    ]
    pairs = config.lora.rank * sum(sum(m.weight.shape) for m in linear)
    adapter = pairs + 15 * inputs.shape[1] * (1 if tied else 2)
    text = settings.get_text_config()
    inner = max(max(m.weight.shape) for m in linear)
    return ModelShape(
        body,
        vocabulary,
        outputs.numel(),
        adapter,
        text.num_hidden_layers,
        inputs.shape[1],
        inner,
    )


def _largest_load(
    steps: Sequence[StepPlan],
    lengths: Sequence[int],
    config: TrainingConfig,
    scale: Scale | None,
) -> int:
    """Tokens in memory at once: of the CPU loop a load a worker, of the Trainer one load."""
    longest = max(lengths)
    if scale is not None:
        return max(scale.micro_tokens, longest)
    largest = 0
    for step in steps:
        loads = [sum(lengths[row] for row in load) for load in step]
        largest = max(largest, sum(nlargest(config.workers, loads)))
    return largest


def _memory(
    shape: ModelShape,
    config: TrainingConfig,
    scale: Scale | None,
    load: int,
    share: float,
    shards: int,
    size: int,
) -> dict[str, float]:
    """Bytes by purpose, for a load of tokens, a share of them targets, with numbers of so many bytes."""
    # LoRA: base and a merged copy of the body; full: float32 originals and copies to compute with.
    lora = config.method == "lora"
    weights: float = (
        size * (shape.parameters + shape.body)
        if lora
        else (4 + size) * shape.parameters
    )
    if config.quantize != "none":
        weights = _QUANTIZED * shape.body + size * shape.vocabulary
    trained = shape.trained(config.method)
    # activations of one token in one layer
    kept = size * (10 * shape.width + 4 * shape.inner)
    again = scale is not None and scale.checkpointing
    layers = shape.layers * size * shape.width + kept if again else shape.layers * kept
    return {
        "weights": weights / shards,
        "gradients": 4 * trained / shards,
        "optimiser": 8 * trained / shards,
        "activations": float(load * layers),
        "logits": load
        * share
        * (shape.head / shape.width)
        * 12,  # bf16, float32 and their gradient
    }
