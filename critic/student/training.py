"""Fine-tuning a critic: labelled rows and a base checkpoint in, adapter and checkpoint with `critic.json` out."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from critic.case_files import read_labelled, rows_file
from critic.cases import GROUPS, Case, check
from critic.student.card import write_card
from critic.student.prompt import CriticLayout, PromptCodec
from critic.student.settings import CriticConfig
from selfrag.interface import UserError, count_of
from selfrag.training.job import base_name, trained
from selfrag.training.rows import GROUP_OF_ROLE, MASKED, TargetGroup, TrainingExample
from selfrag.training.run import PreparedRows, TrainedModel, split_off
from selfrag.training.settings import Scale

if TYPE_CHECKING:
    from selfrag.training.estimate import RunEstimate


WEIGHT_RANGE = (0.4, 2.5)
"""Bounds of a row's weight: a rare combination must not rule a step."""


def balanced(
    rows: Sequence[Case], per_label: Mapping[str, int | None], seed: int
) -> list[Case]:
    """Rows with at most as many of each label as asked; data sets of a label are drawn alike, small ones whole.

    `per_label` is group -> the most rows of each of its labels; None for all. A group left out is not used.
    """
    unknown = sorted(set(per_label) - set(GROUPS))
    if unknown:
        raise UserError(f"unknown group {unknown[0]!r}; known: {', '.join(GROUPS)}")
    members: dict[tuple[str, str], dict[str, list[Case]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        if row.group in per_label:
            members[row.group, row.label][f"{row.dataset}/{row.rule}"].append(row)
    chosen: set[str] = set()
    for (group, label), sources in members.items():
        room = per_label[group]
        if room is None:
            room = sum(map(len, sources.values()))
        rng = random.Random(f"{seed}/{group}/{label}")  # noqa: S311 - an order, not a secret
        for left, source in enumerate(
            sorted(sources, key=lambda name: (len(sources[name]), name))
        ):
            share = min(len(sources[source]), room // (len(sources) - left))
            chosen.update(row.id for row in rng.sample(sources[source], share))
            room -= share
    if not chosen:
        raise UserError(
            "no rows of the groups asked for; check the file and the groups"
        )
    return [row for row in rows if row.id in chosen]


STRETCH = 48
"""Tokens of passages that count as one length."""


def length_weights(
    groups: Sequence[str], labels: Sequence[str], lengths: Sequence[int]
) -> list[float]:
    """Return a weight for each row that makes the labels of a group alike within each stretch of passage lengths.

    Of each row come group, label and passage tokens (0 without). The mean is 1 in each group.
    """
    # 1. Count rows by stretch of lengths, and by label within it; 0 stands for no passage.
    stretches = [
        (group, -(-length // STRETCH))
        for group, length in zip(groups, lengths, strict=True)
    ]
    of_stretch = Counter(stretches)
    of_label = Counter(zip(stretches, labels, strict=True))
    kinds = Counter(stretch for stretch, _ in of_label)
    # 2. Weigh each label of a stretch as if there were as many of all.
    low, high = WEIGHT_RANGE
    raw = []
    for stretch, label in zip(stretches, labels, strict=True):
        even = of_stretch[stretch] / (kinds[stretch] * of_label[stretch, label])
        raw.append(min(high, max(low, even)) if stretch[1] else 1.0)
    # 3. Bring the mean of each group to 1.
    sums: dict[str, float] = defaultdict(float)
    for group, weight in zip(groups, raw, strict=True):
        sums[group] += weight
    counts = Counter(groups)
    return [
        weight * counts[group] / sums[group]
        for group, weight in zip(groups, raw, strict=True)
    ]


def example(row: Case, codec: PromptCodec) -> TrainingExample:
    """Make the example of a row; the loss is on the label and the EOS after it, nowhere else."""
    prompt = codec.prompt(row)
    labels = row.labels
    answer = prompt.options[labels.names.index(row.label)]
    learned = (*answer, codec.eos_id)
    kinds = [*[int(GROUP_OF_ROLE[labels.role])] * len(answer), int(TargetGroup.EOS)]
    return TrainingExample(
        ids=(*prompt.ids, *learned),
        labels=(*[MASKED] * len(prompt.ids), *learned),
        groups=(*[int(TargetGroup.TEXT)] * len(prompt.ids), *kinds),
        dropped_tokens=sum(prompt.dropped.values()),
    )


def examples(
    rows: Sequence[Case], codec: PromptCodec
) -> tuple[list[TrainingExample], dict[str, Any]]:
    """Make the examples of all rows, with weights against the length shortcut, and counts for the manifest."""
    lengths = [evidence_tokens(row, codec) for row in rows]
    weights = length_weights(
        [row.group for row in rows], [row.label for row in rows], lengths
    )
    made: list[TrainingExample] = []
    shortened: Counter[str] = Counter()
    by_label: dict[str, list[int]] = defaultdict(list)
    for row, weight, length in zip(rows, weights, lengths, strict=True):
        made.append(replace(example(row, codec), weight=weight))
        shortened.update(codec.prompt(row).dropped.keys())
        by_label[f"{row.group}/{row.label}"].append(length)
    names = sorted(by_label)
    facts = {
        "rows": len(rows),
        "rows_by_label": {name: len(by_label[name]) for name in names},
        "median_passage_tokens_by_label": {
            name: statistics.median(by_label[name]) for name in names
        },
        "rows_with_shortened_part": dict(sorted(shortened.items())),
        "rows_with_shortened_passages": shortened["evidence"],
    }
    return made, facts


def evidence_tokens(row: Case, codec: PromptCodec) -> int:
    """Tokens that the passage adds to the prompt; 0 without one."""
    if row.evidence is None:
        return 0
    without = replace(row, state=replace(row.state, passages=()))
    return len(codec.prompt(row).ids) - len(codec.prompt(without).ids)


def train_critic(
    rows_path: Path,
    base_dir: Path,
    out_dir: Path,
    config: CriticConfig,
    *,
    scale: Scale | None = None,
    recipe: str = "",
) -> Path | None:
    """Train, or continue an interrupted run.

    Args:
        rows_path: labelled cases, JSONL.
        base_dir: base checkpoint.
        out_dir: the run is in `out_dir/run`, the adapter in `out_dir/adapter` (LoRA), and the checkpoint that engines
            load in `out_dir/model`.
        config: settings.
        scale: for transformers' Trainer, in one process or in many; None for the loop for one process.
        recipe: its name, for the model card.

    Returns:
        Directory of the checkpoint; None in a process that is not the main one.
    """
    model_dir, run_dir = out_dir / "model", out_dir / "run"
    rows, source = load_rows(rows_path, config)
    codec: list[PromptCodec] = []

    def prepare(tokenizer: Any) -> PreparedRows:
        codec.append(codec_for(tokenizer, config))
        return prepared_rows(rows, source, codec[0], config)

    result = trained(prepare, base_dir, run_dir, config.training, scale)
    if result is None:
        return None
    _export(result, base_dir, out_dir, config)
    for folder in (out_dir / "adapter", model_dir):
        if folder.exists():  # also where a kill came between the folder and its card
            write_card(folder, codec[0])
    _describe(out_dir, base_dir, config, recipe)
    return model_dir


def planned(
    rows_path: Path,
    base_dir: Path,
    config: CriticConfig,
    scale: Scale | None = None,
) -> tuple[Mapping[str, Any], RunEstimate]:
    """Return what a run would learn and cost, without loading the model: facts about its rows, and the estimate."""
    from selfrag.training.estimate import estimate
    from selfrag.training.expansion import expanded_tokenizer

    prepared = prepared_rows(
        *load_rows(rows_path, config),
        codec_for(expanded_tokenizer(base_dir), config),
        config,
    )
    return prepared.facts, estimate(prepared, config.training, scale)


def codec_for(tokenizer: Any, config: CriticConfig) -> PromptCodec:
    """Make the codec of a run, for an expanded tokenizer; its longest prompt must fit `training.max_length`."""
    codec = PromptCodec.from_tokenizer(
        tokenizer, CriticLayout(config.style), config.limits
    )
    if codec.max_length > config.training.max_length:
        raise UserError(
            f"prompts of up to {count_of(codec.max_length, 'tokens', 'do')} not fit"
            f" max_length={config.training.max_length};"
            " raise it, or lower the limits of the parts"
        )
    return codec


def load_rows(path: Path, config: CriticConfig) -> tuple[list[Case], dict[str, Any]]:
    """Read the balanced rows of a file or data folder, and facts about the file.

    Rows that lack what their group judges teach nothing; they are left out and counted by reason.
    """
    rows = list(read_labelled(rows_file(path)))
    kept: list[Case] = []
    left_out: Counter[str] = Counter()
    for row in balanced(rows, config.per_label, config.training.seed):
        try:
            check(row)
            kept.append(row)
        except UserError as error:
            left_out[str(error)] += 1
    if not kept:
        raise UserError(
            f"{path}: no row can be judged ({', '.join(left_out)}); check the file"
        )
    return kept, {"rows_in_file": len(rows), "rows_left_out": dict(left_out)}


def prepared_rows(
    rows: list[Case],
    source: Mapping[str, Any],
    codec: PromptCodec,
    config: CriticConfig,
) -> PreparedRows:
    """Examples of a run, spread over the epoch by group and label; `source` is what is known of their file."""
    made, facts = examples(rows, codec)
    strata = [f"{row.group}/{row.label}" for row in rows]
    settings = {
        "style": config.style,
        "per_label": dict(config.per_label),
    } | codec.as_dict()
    content = json.dumps(
        [row.as_dict() for row in rows], ensure_ascii=False, sort_keys=True
    )
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    inputs = {"prompt": codec.fingerprint, "rows": digest}
    prepared = PreparedRows(
        made, strata, inputs, {**facts, **source, "critic": settings}
    )
    groups = [row.instruction for row in rows]
    return split_off(prepared, groups, config.training.held_out, config.training.seed)


def _export(
    trained_model: TrainedModel, base_dir: Path, out_dir: Path, config: CriticConfig
) -> None:
    """Write what is missing of adapter and checkpoint."""
    from selfrag.training.export import merge, save_adapter, save_checkpoint

    adapter, model = out_dir / "adapter", out_dir / "model"
    lora = config.training.method == "lora"
    if lora and not adapter.exists():
        save_adapter(trained_model.trainee, adapter, trained_model.state)
    if model.exists():
        return
    if lora and trained_model.state is not None:
        merge(base_dir, adapter, model)  # the model in memory holds shards
    else:
        save_checkpoint(trained_model.trainee, model, trained_model.state)


def _describe(out_dir: Path, base_dir: Path, config: CriticConfig, recipe: str) -> None:
    """Write the model card of the checkpoint, from the run's own files."""
    from selfrag.training.reports import Product
    from selfrag.training.reports import write_card as write_readme

    run_dir = out_dir / "run"
    learned = "all weights"
    if config.training.method == "lora":
        learned = "LoRA of rank {rank}, merged"
    product = Product(
        f"Critic for Self-RAG ({learned}; labels as {config.style})",
        "Judges cases of Retrieve, IsRel, IsSup and IsUse: `critic eval ROWS --critic FOLDER`,"
        " `critic augment PAIRS --critic FOLDER`. `critic.json` holds the prompt that it was trained with.",
        "transformers",
    )
    write_readme(
        run_dir, out_dir / "model", product, base=base_name(base_dir), recipe=recipe
    )
