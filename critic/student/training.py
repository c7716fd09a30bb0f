"""Fine-tuning a critic: labelled rows and a base checkpoint in, adapter and checkpoint with `critic.json` out.

Knows the settings of a critic's run. The optimiser, checkpoints and resumption are `selfrag.training.run`'s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic.cases import Labelled, read_labelled, rows_file
from critic.student.card import write_card
from critic.student.codec import Limits, PromptCodec
from critic.student.examples import examples
from critic.student.layout import Layout, Style
from critic.student.sampling import balanced
from selfrag.errors import UserError
from selfrag.training.packing import Weighting
from selfrag.training.run import Prepared, TrainingConfig, fit, plan

if TYPE_CHECKING:
    from selfrag.training.model import Trainee

ALIKE = Weighting(text=1.0, retrieve=1.0, isrel=1.0, issup=1.0, isuse=1.0, marker=0.0, eos=0.05)
"""Every label counts the same; EOS only so much that free generation ends."""

DEFAULT_PER_LABEL: Mapping[str, int | None] = {"Retrieve": 320, "IsRel": 1000, "IsSup": 1350, "IsUse": 280}
"""Rows of each label for a run of about an hour on two cores: most where the judgment is hardest."""

DEFAULT_TRAINING = TrainingConfig(
    seed=30,
    step_tokens=3200,
    learning_rate=6e-4,
    row_learning_rate=2e-3,
    warmup=0.05,
    weighting=ALIKE,
    max_length=1024,
    checkpoint_steps=20,
)


@dataclass(frozen=True)
class CriticConfig:
    """What decides a critic, next to base model and rows.

    Attributes:
        style: labels as reflection tokens (`tokens`) or as label names (`words`).
        limits: longest parts of a prompt.
        per_label: group to the most rows of each label; None for all of them; a group left out is not learned.
        training: optimiser, adapter and schedule; its seed also draws the rows.
    """

    style: Style = "tokens"
    limits: Limits = field(default_factory=lambda: Limits(evidence=160, preceding=48, output=160, instruction=128))
    per_label: Mapping[str, int | None] = field(default_factory=lambda: dict(DEFAULT_PER_LABEL))
    training: TrainingConfig = DEFAULT_TRAINING


def train_critic(
    rows_path: Path, base_dir: Path, out_dir: Path, config: CriticConfig, *, start: Path | None = None
) -> Path:
    """Train, or go on with an interrupted run.

    Args:
        rows_path: labelled cases, JSONL.
        base_dir: base checkpoint.
        out_dir: the run is in `out_dir/run`, the adapter in `out_dir/adapter` (LoRA), and the checkpoint that engines
            load in `out_dir/model`.
        config: settings.
        start: directory of an earlier run to begin with.

    Returns:
        Directory of the checkpoint.

    Raises:
        UserError: rows, base or settings cannot be used, or `out_dir` holds another run.
    """
    model_dir, run_dir = out_dir / "model", out_dir / "run"
    rows = load_rows(rows_path, config)
    codec: list[PromptCodec] = []

    def prepare(tokenizer: Any) -> Prepared:
        codec.append(codec_for(tokenizer, config))
        prepared = prepared_rows(rows, codec[0], config)
        return Prepared(prepared.examples, prepared.strata, {**prepared.inputs, "rows": _digest(rows)}, prepared.facts)

    trainee = fit(prepare, base_dir, run_dir, config.training, start=start)
    if not model_dir.exists():
        _export(trainee, codec[0], out_dir, config)
    return model_dir


def planned(rows_path: Path, base_dir: Path, config: CriticConfig) -> dict[str, Any]:
    """What a run would learn, without loading the model: rows, labels, passage lengths, tokens and steps.

    Raises:
        UserError: as `train_critic`, for rows, tokenizer and settings.
    """
    from selfrag.loading import load_tokenizer, resolve_model
    from selfrag.training.expansion import add_tokens

    tokenizer = load_tokenizer(resolve_model(base_dir))
    add_tokens(tokenizer)
    prepared = prepared_rows(load_rows(rows_path, config), codec_for(tokenizer, config), config)
    tokens = sum(map(len, prepared.examples))
    return {**prepared.facts, "tokens": tokens, "steps": len(plan(prepared, config.training))}


def codec_for(tokenizer: Any, config: CriticConfig) -> PromptCodec:
    """The codec of a run, for an expanded tokenizer.

    Raises:
        UserError: the longest possible prompt does not fit `training.max_length`.
    """
    codec = PromptCodec.from_tokenizer(tokenizer, Layout(config.style), config.limits)
    if codec.max_length > config.training.max_length:
        raise UserError(
            f"prompts of up to {codec.max_length} tokens do not fit max_length={config.training.max_length};"
            " raise it, or lower the limits of the parts"
        )
    return codec


def load_rows(path: Path, config: CriticConfig) -> list[Labelled]:
    """The balanced rows of a file, or of `train/critic.jsonl[.gz]` in a data folder."""
    return balanced(list(read_labelled(rows_file(path))), config.per_label, config.training.seed)


def prepared_rows(rows: list[Labelled], codec: PromptCodec, config: CriticConfig) -> Prepared:
    """Examples of a run, spread over the epoch by group and label."""
    made, facts = examples(rows, codec)
    strata = [f"{row.case.group}/{row.label}" for row in rows]
    settings = {"style": config.style, "per_label": dict(config.per_label)} | codec.as_dict()
    return Prepared(made, strata, {"prompt": codec.fingerprint}, facts | {"critic": settings})


def _digest(rows: list[Labelled]) -> str:
    content = json.dumps([row.as_dict() for row in rows], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _export(trainee: Trainee, codec: PromptCodec, out_dir: Path, config: CriticConfig) -> None:
    from selfrag.training.export import save_adapter, save_checkpoint

    adapter = out_dir / "adapter"
    if config.training.method == "lora" and not adapter.exists():
        write_card(save_adapter(trainee, adapter), codec)
    write_card(save_checkpoint(trainee, out_dir / "model"), codec)
