"""Settings of a training run: what is learned (`TrainingConfig`), and where it is computed (`Scale`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, TypeVar, get_args

from pydantic import BeforeValidator

from selfrag.common.checks import check_choice, check_float, check_int
from selfrag.common.errors import UserError
from selfrag.training.rows import TargetGroup

RUN, ADAPTER, MODEL = "run", "adapter", "model"
"""Folders below that of a job: the run's journal, and what came out."""

T = TypeVar("T")


def _without_words(value: object) -> object:
    """Return None for `none` and `all`, which stand for it in TOML."""
    return None if value in ("none", "all") else value


Unset: TypeAlias = Annotated[T | None, BeforeValidator(_without_words)]
"""A setting that may be None, in a recipe `none` or `all`."""
Method = Literal["lora", "full"]
Precision = Literal["auto", "bf16", "fp32"]
Quantization = Literal["none", "nf4"]


@dataclass(frozen=True, slots=True)
class Lora:
    """Size of the adapter."""

    rank: int = 16  # inner width of every LoRA pair
    alpha: float = 32.0  # the product B A is scaled by alpha / rank


@dataclass(frozen=True, slots=True)
class Reach:
    """What of a model an adapter changes, and when."""

    # the vocabulary is expanded by the reflection tokens and their rows are trained. False leaves the vocabulary as it
    # is, which is what an engine needs that serves several adapters on one base.
    token_rows: bool = True
    # LoRA on at most this many layers at the end of the model; None for all. Nothing below them needs a gradient, so
    # training is faster and the adapter smaller.
    last_layers: Unset[int] = None
    # token ids that switch an activated LoRA on; empty for a LoRA that acts everywhere
    invocation: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "invocation", tuple(self.invocation))
        if self.last_layers is not None:
            check_int("last_layers", self.last_layers)
        if self.invocation and self.token_rows:
            raise UserError(
                "an activated LoRA leaves the vocabulary as it is: set token_rows = false"
            )


@dataclass(frozen=True, slots=True)
class Weighting:
    """Share of each kind of target position in the loss. Reflection tokens are rare and hardly count at weight 1."""

    text: float = 1.0  # an ordinary token of a text part of `text_length` tokens
    retrieve: float = 3.0  # a Retrieve token
    isrel: float = 6.0  # an IsRel token
    issup: float = 3.0  # an IsSup token
    isuse: float = 2.0  # an IsUse token
    marker: float = 0.2  # `<paragraph>` or `</paragraph>`
    eos: float = 1.0  # the end of the answer
    # text tokens of a row with n of them weigh `text * sqrt(text_length / n)` each, so that a row of 200 tokens does
    # not count 50 times a row of 4. None: they weigh `text` each.
    text_length: Unset[float] = 10.0

    @classmethod
    def uniform(cls) -> Weighting:
        """Weigh every target position alike: the plain language-model loss of the paper."""
        return cls(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, None)

    def of_group(self) -> dict[TargetGroup, float]:
        """Weight of a position by its group; text before the length correction."""
        return {group: getattr(self, group.name.lower()) for group in TargetGroup}


_COUNTS = (
    "epochs",
    "max_steps",
    "step_tokens",
    "step_rows",
    "load_tokens",
    "workers",
    "max_length",
    "checkpoint_steps",
    "validate_steps",
    "patience",
)
"""Whole numbers of at least 1; where the setting may be left out, None is fine."""

_SHARES = ("warmup", "beta1", "beta2", "held_out")
"""Numbers from 0 to 1."""

_AMOUNTS = (
    "learning_rate",
    "row_learning_rate",
    "weight_decay",
    "clip",
    "checkpoint_minutes",
)
"""Numbers of at least 0."""


Decay = Literal["linear", "cosine"]
Sharding = Literal["none", "fsdp", "zero3"]
Attention = Literal["auto", "packed", "sdpa", "flash_attention_2"]


@dataclass(frozen=True, slots=True)
class Scale:
    """Settings of the machine, not of the method: another value gives the same loss up to rounding."""

    sharding: Sharding = "none"  # `none` keeps the whole model in each process; `fsdp` and `zero3` cut it into shards
    # tokens that one process computes at once, padding-free; memory goes by it. A longer row is alone.
    micro_tokens: int = 8192
    checkpointing: bool = False  # recompute activations in backward: about a third more time, far less memory
    # `auto` takes FlashAttention 2 where it is installed on a GPU, else `packed`, our own
    attention: Attention = "auto"
    loader_workers: int = 0  # processes that lay out rows ahead of the step; 0 for none

    def __post_init__(self) -> None:
        check_choice("sharding", self.sharding, get_args(Sharding))
        check_choice("attention", self.attention, get_args(Attention))
        check_int("micro_tokens", self.micro_tokens)
        check_int("loader_workers", self.loader_workers, 0)


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Everything that decides the result of a run, next to base model and rows.

    Attributes:
        seed: seed of the row order and of new weights.
        method: what is trained: a `lora` adapter or the `full` model.
        lora: size of the adapter.
        epochs: passes over the rows; the last one may be cut short by `max_steps`.
        max_steps: optimiser steps of the run; None for whole epochs.
        step_tokens: tokens per optimiser step.
        step_rows: rows per optimiser step instead, however long they are; None for `step_tokens`.
        load_tokens: a step is computed in loads of about this many tokens, which bounds the memory; None for one load a
            worker.
        workers: loads computed side by side in each step, each on one thread; the number of CPU cores is right.
        learning_rate: peak rate of LoRA pairs, or of all weights.
        row_learning_rate: peak rate of the token rows.
        warmup: share of the steps until the peak.
        decay: of the rate from the peak to 0; or `cosine`.
        weight_decay: of everything but token rows and vectors.
        beta1: of AdamW.
        beta2: of AdamW.
        clip: largest norm of the gradient.
        max_length: longest example in tokens.
        max_passage: longest passage body in tokens.
        learn_markers: whether the paragraph markers are targets.
        weighting: share of each kind of position in the loss.
        checkpoint_steps: steps between two checkpoints, at most.
        checkpoint_minutes: minutes between two checkpoints, at most.
        held_out: share of the rows that nothing is learned of and the run is validated on, whole instructions together;
            adapters of intrinsics have a share of their own in `[rows]`.
        validate_steps: steps between two looks at the held-out rows, if there are any.
        patience: looks without a lower held-out loss after which the run stops; None trains to the end. The product has
            the parameters of the best look.
        device: where to compute; `cuda` wants one worker.
        precision: what to compute in, `bf16` or `fp32`; `auto` is `bf16` where the device has instructions for it. In
            `bf16`, whatever is trained stays float32 beside it.
        reach: what of the model an adapter changes.
        quantize: `nf4` keeps the linear layers of the base in 4 bits while an adapter is trained on them (QLoRA); for
            recipes with [scale] and without shards.
    """

    seed: int = 0
    method: Method = "lora"
    lora: Lora = field(default_factory=Lora)
    epochs: int = 1
    max_steps: Unset[int] = None
    step_tokens: int = 2400
    step_rows: Unset[int] = None
    load_tokens: Unset[int] = None
    workers: int = 2
    learning_rate: float = 8e-4
    row_learning_rate: float = 2e-3
    warmup: float = 0.04
    decay: Decay = "linear"
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    max_length: int = 1024
    max_passage: int = 512
    learn_markers: bool = True
    weighting: Weighting = field(default_factory=Weighting)
    checkpoint_steps: int = 25
    checkpoint_minutes: float = 10.0
    held_out: float = 0.0
    validate_steps: int = 25
    patience: Unset[int] = None
    device: str = "cpu"
    precision: Precision = "auto"
    reach: Reach = field(default_factory=Reach)
    quantize: Quantization = "none"

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(Method))
        check_choice("decay", self.decay, get_args(Decay))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("quantize", self.quantize, get_args(Quantization))
        if self.quantize != "none" and self.method != "lora":
            raise UserError(
                "quantize = 'nf4' is for method 'lora': weights of 4 bits cannot be trained"
            )
        for name in _COUNTS:
            if (value := getattr(self, name)) is not None:
                check_int(name, value)
        check_int("max_passage", self.max_passage, 0)
        check_int("lora rank", self.lora.rank)
        for name in _SHARES:
            check_float(name, getattr(self, name), 0, 1)
        for name in _AMOUNTS:
            check_float(name, getattr(self, name))
