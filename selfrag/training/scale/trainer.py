"""transformers' Trainer with our loss, optimiser, schedule and order of rows. Knows no files but checkpoints.

Everything that decides what is learned comes from the modules that the CPU loop uses too: `loss.py`, `optimizer.py`,
`schedule.py`, `batching.py`. This file connects them to the Trainer, which brings DDP, FSDP and DeepSpeed.
"""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from selfrag.errors import UserError
from selfrag.training import attention
from selfrag.training.journal import Journal
from selfrag.training.loss import keeps_logits, target_losses
from selfrag.training.model import Trainee
from selfrag.training.optimizer import optimizer_for
from selfrag.training.progress import Tally, measure
from selfrag.training.run import TrainingConfig, not_finite
from selfrag.training.scale.loads import Load, Loads, only
from selfrag.training.schedule import rate

_FULL = 2**16  # bytes; a disk with less is full to whoever writes a checkpoint

COMPLETE = "complete"
"""File in a checkpoint's directory, written when every process has finished writing the rest."""


class SelfRAGTrainer(Trainer):  # type: ignore[misc]  # transformers has no types
    """A Trainer over `Loads`.

    Args:
        trainee: the model; loaded `plain` where parameters are cut into shards.
        config: what decides the result.
        loads: the plan.
        args: with `max_steps`, `gradient_accumulation_steps` and a batch of one load a process.
    """

    def __init__(self, trainee: Trainee, config: TrainingConfig, loads: Loads, args: TrainingArguments) -> None:
        self.trainee, self.config, self.loads = trainee, config, loads
        self.tally, self.norm = Tally(), math.nan
        self._packed = trainee.causal.config._attn_implementation == attention.NAME
        self._keeps = keeps_logits(trainee.causal)
        self.optimizer: Any
        self.lr_scheduler: Any
        super().__init__(model=trainee.model, args=args, train_dataset=loads, data_collator=only)
        self.loss_is_scaled_for_ga = True  # a load's loss is divided by the weight of its whole step

    def compute_loss(
        self, model: Any, inputs: dict[str, Load], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """This load's part of the step's weighted mean; wrappers average over processes, hence the factor."""
        load = inputs["load"]
        losses, hits = target_losses(
            model, load.pack, packed=self._packed, keeps=self._keeps, rowwise=self.trainee.rowwise
        )
        weights = load.pack.weights
        if float(weights.sum()) > 0:
            self.tally = self.tally + measure(load.pack, losses.detach().cpu(), hits.cpu())
        loss: torch.Tensor = (losses * weights.to(losses.device)).sum() / load.total * self.args.world_size
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
            warmup = max(1, round(self.config.warmup * total))
            chosen = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = LambdaLR(chosen, lambda step: rate(step, total, warmup))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted; the log has tokens and seconds."""
        return 0

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.loads)  # the plan is the order

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)
        self.norm = float("nan") if norm is None else float(norm)  # DeepSpeed clips by itself and tells later
        if norm is not None and not math.isfinite(self.norm):
            raise not_finite(self.state.global_step + 1, self.config.learning_rate)
        if not math.isfinite(self.tally.loss_sum):
            raise not_finite(self.state.global_step + 1, self.config.learning_rate)
        return norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            # safetensors and torch raise errors of their own where the disk is full.
            place = Path(self.args.output_dir)
            if "No space left" not in str(error) and shutil.disk_usage(place).free > _FULL:
                raise
            raise UserError(
                f"no space left while writing {place}/checkpoint-{self.state.global_step};"
                " free some and run the same again: it goes on from the checkpoint before"
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """The trained parameters and nothing else: PEFT would add whole matrices because their rows have grown."""
        if output_dir is None or not hasattr(self.trainee.model, "peft_config"):
            super()._save(output_dir, state_dict)
            return
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        self.trainee.model.save_pretrained(output_dir, state_dict=state_dict, save_embedding_layers=False)


class Record(TrainerCallback):  # type: ignore[misc]
    """Writes the journal, shows progress, marks complete checkpoints, and keeps merged weights fresh.

    Args:
        trainer: whose callback this is.
        journal: on the main process; None on the others.
    """

    def __init__(self, trainer: SelfRAGTrainer, journal: Journal | None) -> None:
        self.trainer, self.journal = trainer, journal
        self._started, self._bar = 0.0, None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Cut the log to where the run goes on."""
        from tqdm import tqdm

        if self.journal is not None:
            self.journal.cut(state.global_step)
            self._bar = tqdm(
                total=state.max_steps, initial=state.global_step, desc="training", unit="step", disable=None
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """New step, new sums; the merged weights follow the parameters, also after a resumption."""
        self.trainer.tally, self._started = Tally(), time.monotonic()
        self.trainer.trainee.refresh()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One line of the log, summed over the processes."""
        tally = _summed(self.trainer.tally, args.world_size)
        if self.journal is None:
            return
        seconds = time.monotonic() - self._started
        tokens = self.trainer.loads.tokens_of(state.global_step - 1)
        config = self.trainer.config
        factor = rate(state.global_step - 1, state.max_steps, max(1, round(config.warmup * state.max_steps)))
        norm = None if math.isnan(self.trainer.norm) else self.trainer.norm
        self.journal.log(
            {"step": state.global_step, "tokens": tokens, "seconds": seconds, "norm": norm, "rate": factor}
            | tally.as_dict(self.trainer.trainee.tokenizer)
        )
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(f"loss {tally.loss:.3f}, {tokens / seconds:.0f} tokens/s")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """All processes have written: say so in the checkpoint."""
        self.trainer.accelerator.wait_for_everyone()
        if self.journal is not None:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE).touch()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the last trained numbers in the merged weights, too."""
        self.trainer.trainee.refresh()
        if self._bar is not None:
            self._bar.close()


def _summed(tally: Tally, processes: int) -> Tally:
    if processes == 1:
        return tally
    from accelerate.utils import gather_object

    return sum(gather_object([tally]), Tally())
