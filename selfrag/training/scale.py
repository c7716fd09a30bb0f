"""Training in many processes through transformers' Trainer and accelerate: GPUs, FSDP, DeepSpeed ZeRO-3."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from selfrag.common.atomic import writing
from selfrag.common.errors import UserError, require
from selfrag.common.progress import Progress
from selfrag.training.journal import TrainingJournal
from selfrag.training.model import (
    LossTally,
    Trainee,
    keeps_logits,
    load_trainee,
    measure,
    target_losses,
)
from selfrag.training.packing import PACKED, Pack, StepPlan, pack, split, weight_of
from selfrag.training.rows import TrainingExample
from selfrag.training.run import (
    PrepareRows,
    TrainedModel,
    Validation,
    begin,
    keep_best,
    log_step,
    not_finite,
    optimizer_for,
    rate,
    resolve_precision,
    synchronize,
)
from selfrag.training.settings import Precision, Scale, TrainingConfig, Weighting


@dataclass(frozen=True, slots=True)
class TrainingLoad:
    """What one process computes at once."""

    pack: Pack  # the rows; an empty share of a small step holds one row with weight 0
    total: float  # weight of the whole step, all loads of all processes

    def to(self, device: Any) -> TrainingLoad:
        """Return the same on another device."""
        return replace(self, pack=self.pack.to(device))


@dataclass(eq=False)
class TrainingLoads(Dataset[TrainingLoad]):
    """All loads of a run, in the order step, accumulation, process."""

    examples: Sequence[TrainingExample]  # of the run
    steps: Sequence[StepPlan]  # the plan; the loads in it are dealt again
    weighting: Weighting  # share of each kind of position
    processes: int  # how many compute side by side
    micro_tokens: int  # most tokens of a load, unless a single row is longer
    # loads of one process in a step, the same in every step; the fewest that keep `micro_tokens`
    accumulation: int = field(init=False)

    def __post_init__(self) -> None:
        self._lengths = [len(example) for example in self.examples]
        self._weights = [
            weight_of(example, self.weighting) for example in self.examples
        ]
        self._rows = [list(chain.from_iterable(step)) for step in self.steps]
        self.accumulation = max((self._needed(rows) for rows in self._rows), default=1)

    def __len__(self) -> int:
        return len(self.steps) * self.per_step

    @property
    def per_step(self) -> int:
        """Loads in a step."""
        return self.accumulation * self.processes

    def tokens_of(self, step: int) -> int:
        """Tokens of a step, all processes together."""
        return sum(self._lengths[row] for row in self._rows[step])

    def __getitem__(self, index: int) -> TrainingLoad:
        step, place = divmod(index, self.per_step)
        rows = self._rows[step]
        dealt = split(rows, self._lengths, self.per_step)
        total = sum(self._weights[row] for row in rows)
        if place < len(dealt):
            return TrainingLoad(
                pack([self.examples[row] for row in dealt[place]], self.weighting),
                total,
            )
        shortest = min(rows, key=lambda row: self._lengths[row])
        idle = pack([self.examples[shortest]], self.weighting)
        return TrainingLoad(
            replace(idle, weights=torch.zeros_like(idle.weights)), total
        )

    def _needed(self, rows: Sequence[int]) -> int:
        """Return the loads that a process needs for one step."""
        longest = max(self._lengths[row] for row in rows)
        limit = max(self.micro_tokens, longest)
        count = max(
            1, -(-sum(self._lengths[row] for row in rows) // (limit * self.processes))
        )
        while (
            count * self.processes < len(rows)
            and self._heaviest(rows, count * self.processes) > limit
        ):
            count += 1
        return count

    def _heaviest(self, rows: Sequence[int], loads: int) -> int:
        return max(
            sum(self._lengths[row] for row in load)
            for load in split(rows, self._lengths, loads)
        )


def only(loads: Sequence[TrainingLoad]) -> dict[str, TrainingLoad]:
    """Collator for a batch of one load."""
    (load,) = loads
    return {"load": load}


def fit_scaled(
    prepare: PrepareRows,
    base_dir: Path,
    run_dir: Path,
    config: TrainingConfig,
    scale: Scale,
    *,
    start: Path | None = None,
) -> TrainedModel | None:
    """Train through the Trainer, or continue an interrupted run in `run_dir`; a finished run is loaded.

    As `run.fit`, but `workers` and `device` belong to the CPU loop and are not used, `start` does not go with shards,
    and checkpoints are `trainer/checkpoint-N`. Every process sees the same `run_dir`; all but the main one get None.

    Raises:
        UserError: as `run.fit`; the machine is not what `scale` asks for; the disk is full.
    """
    require("accelerate", extra="train")
    sharded = scale.sharding != "none"
    if sharded and config.quantize != "none":
        raise UserError(
            "quantize = 'nf4' is for sharding = 'none': each process holds the whole model in 4 bits"
        )
    if start is not None and sharded:
        raise UserError(
            "a later stage begins from the merged checkpoint of the one before: give it as the base model"
        )
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    config, why = resolve_precision(
        config, run_dir, accelerator.type if accelerator else "cpu"
    )
    if sharded and config.held_out:
        raise UserError(
            "held_out is for sharding = 'none': shards cannot be looked at between steps"
        )
    # The Trainer would move the model's own parameters, not what the fused layers keep beside them.
    device = "cpu"
    if accelerator and not sharded:
        device = f"{accelerator.type}:{os.environ.get('LOCAL_RANK', '0')}"
    load = partial(load_scaled, base_dir, config, scale, device=device)
    setup = begin(prepare, base_dir, replace(config, workers=1), why, load, start)
    trainee = setup.trainee
    tied = trainee.causal.config.tie_word_embeddings
    if (
        scale.sharding == "fsdp"
        and config.method == "lora"
        and tied
        and trainee.expansion.token_ids
    ):
        raise UserError(
            f"FSDP cannot cut the reflection rows of {base_dir.name}, whose tied embeddings share them:"
            " take sharding = 'zero3' or 'none', or train all weights"
        )
    loads = TrainingLoads(
        setup.prepared.examples,
        setup.steps,
        config.weighting,
        processes(),
        scale.micro_tokens,
    )
    # Not before the model is loaded: from here on transformers would load shards.
    arguments = _arguments(run_dir, config, scale, loads)
    if arguments.n_gpu > 1:
        raise UserError(
            f"this process sees {arguments.n_gpu} GPUs and uses one: give --processes {arguments.n_gpu},"
            " or set CUDA_VISIBLE_DEVICES=0"
        )
    setting = {"scale": asdict(scale), "processes": arguments.world_size}
    validation = Validation(setup.prepared.validation, config)
    with ExitStack() as stack:
        journal = None
        if arguments.process_index == 0:
            journal = stack.enter_context(
                TrainingJournal(run_dir, config, setup.inputs, setup.facts, setting)
            )
        trainer = SelfRAGTrainer(trainee, config, loads, arguments)
        return _train(trainer, journal, validation)


def load_scaled(
    base_dir: Path, config: TrainingConfig, scale: Scale, *, device: str = "cpu"
) -> Trainee:
    """Return the model as the Trainer gets it; `config` has a precision that is settled.

    LoRA computes in the run's precision; full weights are float32 under autocast, so that small steps count. Errors are
    those of `load_trainee`.
    """
    precision: Precision = "fp32" if config.method == "full" else config.precision
    return load_trainee(
        base_dir,
        replace(config, precision=precision, device=device),
        attend=_attention(scale),
        plain=scale.sharding != "none"
        or config.method == "full"
        or config.quantize != "none",
    )


def autocast(config: TrainingConfig, scale: Scale) -> bool:
    """Return whether the Trainer needs autocast. LoRA without shards computes in bf16 by itself (see `Fused`)."""
    alone = (
        config.method == "lora"
        and scale.sharding == "none"
        and config.quantize == "none"
    )
    return config.precision == "bf16" and not alone


def _attention(scale: Scale) -> str:
    from transformers.utils import is_flash_attn_2_available

    if scale.attention == "auto" and is_flash_attn_2_available():
        return "flash_attention_2"
    if scale.attention in ("auto", "packed"):
        return PACKED
    return scale.attention


def processes() -> int:
    """Return how many processes train side by side, by what the launcher has set."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _arguments(
    run_dir: Path, config: TrainingConfig, scale: Scale, loads: TrainingLoads
) -> Any:
    try:
        return TrainingArguments(
            output_dir=str(run_dir / "trainer"),
            max_steps=len(loads.steps),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=loads.accumulation,
            use_cpu=not torch.accelerator.is_available() and scale.sharding != "zero3",
            bf16=autocast(config, scale),
            max_grad_norm=config.clip,
            gradient_checkpointing=scale.checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False}
            if scale.checkpointing
            else None,
            save_strategy="steps",
            save_steps=config.checkpoint_steps,
            save_total_limit=2,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=scale.loader_workers,
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
            seed=config.seed,
        )
    except (ValueError, ImportError) as error:
        raise UserError(f"this machine cannot run these settings: {error}") from error


def _train(
    trainer: SelfRAGTrainer, journal: TrainingJournal | None, validation: Validation
) -> TrainedModel | None:
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TrainingRecord(trainer, journal, validation))
    place = Path(trainer.args.output_dir)
    last = _last_checkpoint(place, main=journal is not None)
    trainer.accelerator.wait_for_everyone()
    done = (
        journal is not None
        and last is not None
        and validation.stopped(journal.records(step_of(last)))
    )
    if not _agreed(done):
        with writing(place):
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    if journal is not None:
        keep_best(trainer.trainee, journal)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    state = (
        trainer.accelerator.get_state_dict(trainer.model_wrapped) if sharded else None
    )
    trainer.accelerator.end_training()  # a process that ends with its group's threads running may abort
    return TrainedModel(trainer.trainee, state) if journal is not None else None


def _last_checkpoint(directory: Path, *, main: bool) -> Path | None:
    """Return the newest complete checkpoint; the main process removes incomplete ones."""
    last = None
    for checkpoint in sorted(directory.glob("checkpoint-*"), key=step_of):
        if (checkpoint / COMPLETE).exists():
            last = checkpoint
        elif main:
            shutil.rmtree(checkpoint, ignore_errors=True)
    return last


def step_of(checkpoint: Path) -> int:
    """Return the steps that were done when a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


_FULL = 2**16  # bytes; a disk with less is full to whoever writes a checkpoint

COMPLETE = "complete"
"""File in a checkpoint's directory, written when every process has finished writing the rest."""


class SelfRAGTrainer(Trainer):  # type: ignore[misc]  # transformers has no types
    """A Trainer over the `TrainingLoads` of a plan, with `max_steps`, and a batch of one load a process.

    The trainee is loaded `plain` where parameters are cut into shards.
    """

    def __init__(
        self,
        trainee: Trainee,
        config: TrainingConfig,
        loads: TrainingLoads,
        args: TrainingArguments,
    ) -> None:
        self.trainee, self.config, self.loads = trainee, config, loads
        self.tally, self.norm = LossTally(), math.nan
        self._packed = trainee.causal.config._attn_implementation == PACKED
        self._keeps = keeps_logits(trainee.causal)
        self.optimizer: Any
        self.lr_scheduler: Any
        super().__init__(
            model=trainee.model, args=args, train_dataset=loads, data_collator=only
        )
        # a load's loss is divided by the weight of its whole step
        self.loss_is_scaled_for_ga = True

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, TrainingLoad],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """Return this load's part of the step's weighted mean; wrappers average over processes, hence the factor."""
        load = inputs["load"]
        losses, hits = target_losses(
            model,
            load.pack,
            packed=self._packed,
            keeps=self._keeps,
            rowwise=self.trainee.rowwise,
        )
        weights = load.pack.weights
        if float(weights.sum()) > 0:
            self.tally = self.tally + measure(
                load.pack, losses.detach().cpu(), hits.cpu()
            )
        loss: torch.Tensor = (
            (losses * weights.to(losses.device)).sum()
            / load.total
            * self.args.world_size
        )
        return loss

    def create_optimizer(self, model: Any = None) -> Any:
        """Ours, over the parameters before any wrapper; accelerate follows them into the shards."""
        if self.optimizer is None:
            self.optimizer = optimizer_for(self.trainee, self.config)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Ours; the number of steps is the plan's."""
        if self.lr_scheduler is None:
            total = len(self.loads.steps)
            chosen = optimizer
            if optimizer is None:
                chosen = self.optimizer
            self.lr_scheduler = LambdaLR(
                chosen, lambda step: rate(step, total, self.config)
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the log has tokens and seconds."""
        return 0

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.loads)  # the plan is the order

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)
        # DeepSpeed clips by itself and tells later
        self.norm = float("nan") if norm is None else float(norm)
        unknown = norm is not None and not math.isfinite(self.norm)
        if unknown or not math.isfinite(self.tally.loss_sum):
            raise not_finite(self.state.global_step + 1, self.config.learning_rate)
        return norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            # safetensors and torch raise errors of their own where the disk is full.
            place = Path(self.args.output_dir)
            if (
                "No space left" not in str(error)
                and shutil.disk_usage(place).free > _FULL
            ):
                raise
            raise UserError(
                f"no space left while writing {place}/checkpoint-{self.state.global_step};"
                " free some and run the same again: it continues from the checkpoint before"
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the trained parameters alone: PEFT would add whole matrices because their rows have grown."""
        if output_dir is None or not hasattr(self.trainee.model, "peft_config"):
            super()._save(output_dir, state_dict)
            return
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        self.trainee.model.save_pretrained(
            output_dir, state_dict=state_dict, save_embedding_layers=False
        )


class TrainingRecord(TrainerCallback):  # type: ignore[misc]
    """Writes the journal on the main process, shows progress, marks checkpoints, and keeps merged weights fresh."""

    def __init__(
        self,
        trainer: SelfRAGTrainer,
        journal: TrainingJournal | None,
        validation: Validation,
    ) -> None:
        self.trainer, self.journal, self.validation = trainer, journal, validation
        self._started, self._saved = 0.0, time.monotonic()
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Cut the log to where the run continues."""
        if self.journal is not None:
            self.journal.cut(state.global_step)
            self._progress = Progress(
                "training", "step", state.max_steps, state.global_step, quiet=0
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step with new sums; the merged weights follow the parameters, also after a resumption."""
        self.trainer.tally, self._started = LossTally(), time.monotonic()
        self.trainer.trainee.refresh()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write a line of the log, summed over the processes, and ask for a checkpoint after a look or some minutes."""
        synchronize()
        trainer, step, now = self.trainer, state.global_step, time.monotonic()
        tally, seen = _summed(trainer.tally), None
        old = now - self._saved >= 60 * trainer.config.checkpoint_minutes
        looked = self.validation.due(step, state.max_steps)
        control.should_save = control.should_save or looked or _agreed(old)
        if looked:
            seen = _summed(self._look(args))
        if self.journal is not None and self._progress is not None:
            figures = {
                "step": step,
                "tokens": trainer.loads.tokens_of(step - 1),
                "seconds": now - self._started,
                "norm": None if math.isnan(trainer.norm) else trainer.norm,
                "rate": rate(step - 1, state.max_steps, trainer.config),
            }
            log_step(
                self.journal, trainer.trainee, self._progress, figures, tally, seen
            )
        if looked:
            over = self.journal is not None and self.validation.stopped(
                self.journal.records()
            )
            control.should_training_stop = _agreed(over) or control.should_training_stop

    def _look(self, args: Any) -> LossTally:
        trainer = self.trainer
        trainer.trainee.refresh()
        trainer.trainee.model.eval()  # the Trainer sets it back at the next step
        with trainer.compute_loss_context_manager():
            return self.validation.look(
                trainer.trainee, args.process_index, args.world_size
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint as complete, now that all processes have written."""
        self.trainer.accelerator.wait_for_everyone()
        self._saved = time.monotonic()
        if self.journal is not None:
            place = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (place / COMPLETE).touch()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Refresh the merged weights after the last step."""
        self.trainer.trainee.refresh()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)


def _agreed(value: bool) -> bool:
    """Return what the main process says; clocks differ, and all must save together."""
    from accelerate.utils import broadcast_object_list

    return bool(broadcast_object_list([value])[0])


def _summed(tally: LossTally) -> LossTally:
    from accelerate.utils import gather_object

    return sum(gather_object([tally]), LossTally())
