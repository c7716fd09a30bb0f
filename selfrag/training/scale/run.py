"""A run through the Trainer: prepared examples in, an adapter or a checkpoint's trainee out, resumed at will.

Started once by itself, or once in every process by `accelerate launch` (see `launch.py`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from retrieval.atomic import writing
from selfrag.errors import UserError, require
from selfrag.training import attention
from selfrag.training.expansion import expanded_tokenizer
from selfrag.training.journal import Journal, fingerprint
from selfrag.training.model import DTYPES, Precision, Trainee, load_trainee
from selfrag.training.run import Prepare, TrainingConfig, plan, settled
from selfrag.training.scale.loads import Loads
from selfrag.training.scale.settings import Scale
from selfrag.training.stages import check_stage, load_parameters


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run leaves in memory.

    Attributes:
        trainee: the model; `state` has its numbers where the model itself holds only shards.
        state: parameters by name, gathered, on the main process; None where `trainee` is whole.
        main: whether this process is the one that writes.
    """

    trainee: Trainee
    state: Mapping[str, Any] | None
    main: bool


def fit_scaled(
    prepare: Prepare, base_dir: Path, run_dir: Path, config: TrainingConfig, scale: Scale, *, start: Path | None = None
) -> Trained:
    """Train through the Trainer, or go on with an interrupted run in `run_dir`; a finished run is loaded.

    Args:
        prepare: as in `run.fit`.
        base_dir: the base checkpoint.
        run_dir: directory of the run; every process sees the same.
        config: what decides the result; `workers` and `device` belong to the CPU loop and are not used.
        scale: where and how to compute.
        start: directory of a finished run of the CPU loop, or of an adapter, to begin with; not with shards.

    Writes `manifest.json`, `log.jsonl` (one line a step) and `trainer/checkpoint-N` into `run_dir`.

    Raises:
        UserError: as `run.fit`; the machine is not what `scale` asks for; the disk is full.
    """
    require("accelerate", extra="train")
    sharded = scale.sharding != "none"
    if start is not None and sharded:
        raise UserError("a later stage begins from the merged checkpoint of the one before: give it as the base model")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    config, why = settled(config, run_dir, accelerator.type if accelerator else "cpu")
    if config.patience is not None:
        raise UserError("patience (early stopping) is for the loop for one process; take a recipe without [scale]")
    if start is not None:
        check_stage(start)
    prepared = prepare(expanded_tokenizer(base_dir, token_rows=config.reach.token_rows))  # before the weights are read
    trainee = _load(base_dir, config, scale)
    tied = trainee.causal.config.tie_word_embeddings
    if scale.sharding == "fsdp" and config.method == "lora" and tied and trainee.expansion.token_ids:
        raise UserError(
            f"FSDP cannot cut the reflection rows of {base_dir.name}, whose tied embeddings share them:"
            " take sharding = 'zero3' or 'none', or train all weights"
        )
    inputs = {**prepared.inputs, "base": fingerprint(*sorted(base_dir.glob("*.safetensors")))}
    if start is not None:
        inputs["start"] = load_parameters(start, trainee.parameters, config.lora)
    steps = plan(prepared, replace(config, workers=1))
    loads = Loads(prepared.examples, steps, config.weighting, processes(), scale.micro_tokens)
    # Not before the model is loaded: from here on transformers would load shards.
    arguments = _arguments(run_dir, config, scale, loads)
    if arguments.n_gpu > 1:
        raise UserError(
            f"this process sees {arguments.n_gpu} GPUs and uses one: give --processes {arguments.n_gpu},"
            " or set CUDA_VISIBLE_DEVICES=0"
        )
    journal = None
    tokens = sum(map(len, prepared.examples))
    facts = {**prepared.facts, "tokens": tokens, "steps": len(steps), "packed": not trainee.rowwise, "precision": why}
    if arguments.process_index == 0:
        setting = {"scale": asdict(scale), "processes": arguments.world_size}
        journal = Journal(run_dir, config, inputs=inputs, facts=facts, setting=setting)
    return _train(trainee, config, loads, arguments, journal)


def _load(base_dir: Path, config: TrainingConfig, scale: Scale) -> Trainee:
    """LoRA computes in the run's precision; full weights are float32 under autocast, so that small steps count."""
    precision: Precision = "fp32" if config.method == "full" else config.precision
    return load_trainee(
        base_dir,
        method=config.method,
        lora=config.lora,
        reach=config.reach,
        seed=config.seed,
        dtype=DTYPES[precision],
        attend=_attention(scale),
        plain=scale.sharding != "none" or config.method == "full",
    )


def _attention(scale: Scale) -> str:
    from transformers.utils import is_flash_attn_2_available

    if scale.attention == "auto":
        return "flash_attention_2" if is_flash_attn_2_available() else attention.NAME
    return attention.NAME if scale.attention == "packed" else scale.attention


def processes() -> int:
    """How many processes train side by side, by what the launcher has set."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _arguments(run_dir: Path, config: TrainingConfig, scale: Scale, loads: Loads) -> Any:
    from transformers import TrainingArguments

    # LoRA without shards computes in bf16 by itself (see `fused.py`); everything else needs autocast.
    autocast = config.precision == "bf16" and (config.method == "full" or scale.sharding != "none")
    try:
        return TrainingArguments(
            output_dir=str(run_dir / "trainer"),
            max_steps=len(loads.steps),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=loads.accumulation,
            use_cpu=not torch.accelerator.is_available() and scale.sharding != "zero3",
            bf16=autocast,
            max_grad_norm=config.clip,
            gradient_checkpointing=scale.checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False} if scale.checkpointing else None,
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


def _train(trainee: Trainee, config: TrainingConfig, loads: Loads, arguments: Any, journal: Journal | None) -> Trained:
    from transformers.trainer_callback import PrinterCallback

    from selfrag.training.scale.trainer import Record, SelfRAGTrainer

    trainer = SelfRAGTrainer(trainee, config, loads, arguments)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Record(trainer, journal))
    last = _last_checkpoint(Path(arguments.output_dir), main=journal is not None)
    trainer.accelerator.wait_for_everyone()
    with writing(Path(arguments.output_dir)):
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped) if sharded else None
    trainer.accelerator.end_training()  # a process that ends with its group's threads running may abort
    return Trained(trainee, state, journal is not None)


def _last_checkpoint(directory: Path, *, main: bool) -> Path | None:
    """The newest checkpoint that was written to its end; the main process removes the torn ones."""
    from selfrag.training.scale.trainer import COMPLETE

    found = sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    whole = [path for path in found if (path / COMPLETE).exists()]
    if main:
        for torn in set(found) - set(whole):
            shutil.rmtree(torn, ignore_errors=True)
    return whole[-1] if whole else None
