"""A training run, from rows to trained parameters. A run that is killed and resumed gives the same result."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from selfrag.common.errors import UserError, count_of
from selfrag.common.progress import Progress
from selfrag.prompting import Prompting
from selfrag.training.expansion import expanded_tokenizer
from selfrag.training.journal import (
    TrainingJournal,
    fingerprint,
    load_parameters,
    stage_file,
)
from selfrag.training.model import (
    LossTally,
    Trainee,
    chosen_precision,
    load_trainee,
    measure,
)
from selfrag.training.packing import Pack, StepPlan, filled, pack, plan_epoch
from selfrag.training.records import recorded
from selfrag.training.rows import (
    RowTooLongError,
    TargetLayout,
    TrainingExample,
    read_rows,
)
from selfrag.training.settings import TrainingConfig


def held_out(groups: Sequence[str], share: float, seed: int) -> frozenset[int]:
    """Numbers of the rows to hold out: a `share` of them, above 0 and below 1.

    Rows of one group (a conversation, a question) stay together, on one side or the other. A group that would go beyond
    the share is passed over; if all would, the smallest one is held out.

    Raises:
        UserError: the share leaves nothing on one side.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    order = sorted(members)
    random.Random(seed).shuffle(order)  # noqa: S311 - a split, not a secret
    most = math.ceil(share * len(groups))
    chosen: list[int] = []
    for group in order:
        if len(chosen) + len(members[group]) <= most:
            chosen.extend(members[group])
    if not chosen and order:
        chosen = members[min(order, key=lambda group: len(members[group]))]
    if not 0 < len(chosen) < len(groups):
        raise UserError(
            f"holding out {share:g} of {count_of(len(groups), 'rows')} leaves nothing on one side"
        )
    return frozenset(chosen)


LOOK_TOKENS = 4096
"""Tokens of held-out rows that are computed at once."""


@dataclass(frozen=True, slots=True)
class Validation:
    """The looks of one run at its held-out rows."""

    examples: Sequence[TrainingExample]  # held-out rows; without any, nothing is done
    config: TrainingConfig

    def due(self, step: int, total: int) -> bool:
        """Return whether to validate after this many steps."""
        return bool(self.examples) and (
            step % self.config.validate_steps == 0 or step == total
        )

    def look(self, trainee: Trainee, process: int = 0, processes: int = 1) -> LossTally:
        """Loss and hits over the held-out rows, or over the share of one of `processes`, whose tallies add up."""
        lengths = [len(example) for example in self.examples]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        loads = filled(order, lengths, LOOK_TOKENS)
        tally = LossTally()
        with torch.no_grad():
            for load in loads[process::processes]:
                examples = [self.examples[row] for row in load]
                packed = pack(examples, self.config.weighting)
                losses, hits = trainee.losses(packed)
                tally = tally + measure(packed, losses.cpu(), hits.cpu())
        return tally

    def stopped(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the last `patience` validations of a log brought no lower loss."""
        patience = self.config.patience
        if patience is None:
            return False
        looks = _looks(records)
        return len(looks) > patience and min(looks) in looks[:-patience]


def log_step(
    journal: TrainingJournal,
    trainee: Trainee,
    progress: Progress,
    figures: Mapping[str, Any],
    tally: LossTally,
    seen: LossTally | None,
) -> None:
    """Write the line of a step, and keep its parameters where its look at held-out rows is the best so far.

    `tally` is of the rows that were learned, `seen` of the held-out ones, None where nobody looked.
    """
    record = {**figures, **tally.as_dict(trainee.tokenizer)}
    if seen is not None:
        record["validation"] = seen.as_dict(trainee.tokenizer)
        if seen.loss < min(_looks(journal.records()), default=math.inf):
            journal.save(record["step"], trainee.parameters)
    journal.log(record)
    speed = figures["tokens"] / figures["seconds"]
    progress.advance(note=f"loss {tally.loss:.3f}, {speed:.0f} tokens/s")


def keep_best(trainee: Trainee, journal: TrainingJournal) -> None:
    """Set the parameters to those of the best validation, if there was one."""
    if journal.load_best(trainee.parameters):
        trainee.refresh()


def _looks(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Held-out losses of a log."""
    return [
        float(record["validation"]["loss"])
        for record in records
        if "validation" in record
    ]


def optimizer_for(trainee: Trainee, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over everything that is trained; `peak` of each group is its learning rate before the schedule.

    Where the token rows are no parameters of their own (`full` under a wrapper that cuts parameters into shards), they
    learn at `learning_rate` with the matrix they are in.
    """
    matrices = [p for p in trainee.weights.values() if p.dim() > 1]
    vectors = [p for p in trainee.weights.values() if p.dim() <= 1]
    rows = list(trainee.rows.values())
    groups = []
    for parameters, peak, decay in (
        (matrices, config.learning_rate, config.weight_decay),
        (vectors, config.learning_rate, 0.0),
        (rows, config.row_learning_rate, 0.0),
    ):
        if parameters:
            group = {"params": parameters, "lr": peak, "peak": peak}
            groups.append({**group, "weight_decay": decay})
    return torch.optim.AdamW(groups, betas=(config.beta1, config.beta2))


def rate(step: int, total: int, config: TrainingConfig) -> float:
    """Return the factor on the peak learning rate of a step (from 0) of `total`, after the warm-up by the decay."""
    warmup = max(1, round(config.warmup * total))
    if step < warmup:
        return (step + 1) / warmup
    left = max(0.0, (total - step) / max(1, total - warmup))
    if config.decay == "linear":
        return left
    return (1 - math.cos(math.pi * left)) / 2


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """What a run learns, whatever it was made from."""

    examples: Sequence[TrainingExample]  # ids and labels
    # kind of each example; every stretch of an epoch holds all kinds in proportion
    strata: Sequence[str]
    # fingerprints of what the examples were made from; a run is only resumed with the same
    inputs: Mapping[str, str]
    # counts worth keeping in the manifest
    facts: Mapping[str, Any] = field(default_factory=dict)
    # held-out examples, of which nothing is learned
    validation: Sequence[TrainingExample] = ()


def split_off(
    prepared: PreparedRows, groups: Sequence[str], share: float, seed: int
) -> PreparedRows:
    """Move a share of the examples to the validation, by groups that stay together; none are held out where it is 0.

    Raises:
        UserError: as `held_out`.
    """
    if not share:
        return prepared
    out = held_out(groups, share, seed)
    examples, strata, validation = [], [], []
    for row, (example, stratum) in enumerate(
        zip(prepared.examples, prepared.strata, strict=True)
    ):
        if row in out:
            validation.append(example)
        else:
            examples.append(example)
            strata.append(stratum)
    facts = {**prepared.facts, "held_out": len(out)}
    return replace(
        prepared, examples=examples, strata=strata, facts=facts, validation=validation
    )


PrepareRows: TypeAlias = Callable[[Any], PreparedRows]
"""Makes examples, given the expanded tokenizer."""


def rows_of(
    rows_path: Path, config: TrainingConfig, *, leave_long: bool = False
) -> PrepareRows:
    """Make the examples of a file of rows; raises UserError where the file or a row is bad, or rows do not fit.

    `leave_long` leaves rows out, and counts them, that do not fit even with their passages empty.
    """

    def prepare(tokenizer: Any) -> PreparedRows:
        layout = layout_for(tokenizer, config)
        rows, examples, refused = [], [], []
        for row in read_rows(rows_path):
            try:
                examples.append(layout.example(row))
                rows.append(row)
            except RowTooLongError as error:
                refused.append(str(error))
        if not (rows or refused):
            raise UserError(f"{rows_path} holds no rows")
        if refused and not (leave_long and examples):
            more = ""
            if len(refused) > 1:
                more = f" ({count_of(len(refused) - 1, 'more rows', 'have')} the same fault)"
            raise UserError(f"{rows_path}: {refused[0]}{more}")
        shortened = [
            example.dropped_tokens for example in examples if example.dropped_tokens
        ]
        sources = [row.source for row in rows]
        facts = {
            "rows": len(rows),
            "rows_left_out": len(refused),
            "rows_with_shortened_passages": len(shortened),
            "passage_tokens_left_out": sum(shortened),
            "sources": dict(sorted(Counter(sources).items())),
        }
        made = PreparedRows(examples, sources, {"rows": fingerprint(rows_path)}, facts)
        return split_off(
            made, [row.instruction for row in rows], config.held_out, config.seed
        )

    return prepare


def fit(
    prepare: PrepareRows,
    base_dir: Path,
    run_dir: Path,
    config: TrainingConfig,
    *,
    start: Path | None = None,
) -> Trainee:
    """Train on any prepared examples, or continue an interrupted run in `run_dir`; a finished run is loaded.

    `prepare` must make the same examples when a run continues. `start` is an earlier stage whose parameters this run
    begins with: directory of a finished run, or of an adapter. Writes `manifest.json`, `log.jsonl` (one line a step),
    `checkpoint.pt` and, with held-out examples, `best.pt` into `run_dir`.

    Raises:
        UserError: bad base model, `start` holds no run of the same model and method, or `run_dir` holds another run;
            and whatever `prepare` raises.
    """
    config, why = resolve_precision(config, run_dir, config.device)
    if config.quantize != "none":
        raise UserError(
            "quantize = 'nf4' is for recipes with [scale], such as gpu-24gb"
        )
    load = partial(load_trainee, base_dir, config)
    setup = begin(prepare, base_dir, config, why, load, start)
    trainee, prepared = setup.trainee, setup.prepared
    validation = Validation(prepared.validation, config)
    with TrainingJournal(run_dir, config, setup.inputs, setup.facts) as journal:
        _run(trainee, prepared.examples, setup.steps, config, journal, validation)
        keep_best(trainee, journal)
    return trainee


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """A run before its first step: what the loop and the Trainer start from."""

    trainee: Trainee
    prepared: PreparedRows
    steps: list[StepPlan]
    inputs: Mapping[str, str]
    facts: Mapping[str, Any]


def begin(
    prepare: PrepareRows,
    base_dir: Path,
    config: TrainingConfig,
    why: str,
    load: Callable[[], Trainee],
    start: Path | None,
) -> TrainingStart:
    """Make the examples, load the model by `load`, begin with the parameters of `start`, and plan the steps.

    The model is loaded when the examples are known to be good. `why` says why the precision of `config` is what it is.
    Arguments and errors are else those of `fit`.
    """
    if start is not None:
        stage_file(start)  # refuses what is none
    # before the weights are read
    prepared = prepare(expanded_tokenizer(base_dir, token_rows=config.reach.token_rows))
    trainee = load()
    inputs = {
        **prepared.inputs,
        "base": fingerprint(*sorted(base_dir.glob("*.safetensors"))),
    }
    if start is not None:
        inputs["start"] = load_parameters(start, trainee.parameters, config.lora)
    steps = plan(prepared, config)
    tokens = sum(map(len, prepared.examples))
    facts = {
        **prepared.facts,
        "tokens": tokens,
        "steps": len(steps),
        "packed": not trainee.rowwise,
        "precision": why,
    }
    return TrainingStart(trainee, prepared, steps, inputs, facts)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What a run leaves in memory, in the process that writes."""

    trainee: Trainee  # the model; `state` has its numbers where the model itself holds only shards
    # parameters by name, gathered; None where `trainee` is whole
    state: Mapping[str, Any] | None


def resolve_precision(
    config: TrainingConfig, run_dir: Path, device: str
) -> tuple[TrainingConfig, str]:
    """Return the configuration with a precision for `auto`, and why this one; a run keeps the one it began with."""
    before = recorded(run_dir).get("precision") if config.precision == "auto" else None
    precision, why = (
        (before, "as at the first start")
        if before
        else chosen_precision(config.precision, device)
    )
    return replace(config, precision=precision), why


def not_finite(step: int, learning_rate: float) -> UserError:
    """Make the error for a gradient that is not finite. The parameters before the step are still on disk."""
    return UserError(
        f"step {step}: the gradient is not finite, nothing was changed by this step;"
        f" give a learning rate below {learning_rate:g} and another run directory"
    )


def synchronize() -> None:
    """Wait for the accelerator, if there is one: it computes in the background, and a clock would not see it."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def layout_for(tokenizer: Any, config: TrainingConfig) -> TargetLayout:
    """Return the target layout of a run, for an expanded tokenizer."""
    prompting = Prompting.from_tokenizer(tokenizer)
    return TargetLayout(
        prompting, config.max_length, config.max_passage, config.learn_markers
    )


def plan(prepared: PreparedRows, config: TrainingConfig) -> list[StepPlan]:
    """Return all steps of the run, epoch after epoch."""
    lengths = [len(example) for example in prepared.examples]
    steps: list[StepPlan] = []
    for epoch in range(config.epochs):
        steps += plan_epoch(lengths, prepared.strata, config, epoch)
    return steps[: config.max_steps]


def _run(
    trainee: Trainee,
    examples: Sequence[TrainingExample],
    steps: Sequence[StepPlan],
    config: TrainingConfig,
    journal: TrainingJournal,
    validation: Validation,
) -> None:
    parameters = trainee.parameters
    optimizer = optimizer_for(trainee, config)
    done = journal.resume(parameters, optimizer)
    trainee.refresh()
    with (
        ThreadPoolExecutor(
            config.workers, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool,
        Progress("training", "step", len(steps), done, quiet=0) as progress,
    ):
        saved = time.monotonic()
        over = validation.stopped(journal.records())
        for number in range(done, len(steps)):
            if over:
                break
            started = time.monotonic()
            loads = [
                pack([examples[row] for row in load], config.weighting)
                for load in steps[number]
            ]
            factor = rate(number, len(steps), config)
            tally = _gradients(trainee, loads, pool)
            norm = float(
                torch.nn.utils.clip_grad_norm_(parameters.values(), config.clip)
            )
            if not math.isfinite(norm):
                raise not_finite(number + 1, config.learning_rate)
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
            trainee.refresh()
            synchronize()
            seconds = time.monotonic() - started
            tokens = sum(load.ids.shape[1] for load in loads)
            step = number + 1
            figures = {
                "step": step,
                "tokens": tokens,
                "seconds": seconds,
                "norm": norm,
                "rate": factor,
            }
            seen = None
            if validation.due(step, len(steps)):
                seen = validation.look(trainee)
            log_step(journal, trainee, progress, figures, tally, seen)
            old = time.monotonic() - saved >= 60 * config.checkpoint_minutes
            if (
                seen is not None
                or old
                or step % config.checkpoint_steps == 0
                or step == len(steps)
            ):
                journal.save(step, parameters, optimizer)
                saved = time.monotonic()
            over = seen is not None and validation.stopped(journal.records())


def _gradients(
    trainee: Trainee, loads: Sequence[Pack], pool: ThreadPoolExecutor
) -> LossTally:
    """Set `.grad` of every parameter to the gradient of the step's weighted mean loss.

    Two workers with one thread each beat one worker with two: nothing waits at the end of every small operation.
    Gradients are summed in the order of the loads, so the result does not depend on which worker was faster.
    """
    parameters = list(trainee.parameters.values())
    differentiated = trainee.differentiated
    total = sum(float(load.weights.sum()) for load in loads)

    def work(load: Pack) -> tuple[tuple[torch.Tensor | None, ...], LossTally]:
        losses, hits = trainee.losses(load)
        loss = (losses * load.weights.to(losses.device)).sum() / total
        gradients = torch.autograd.grad(loss, differentiated, allow_unused=True)
        return gradients, measure(load, losses.detach().cpu(), hits.cpu())

    results = list(pool.map(work, loads))
    for position, parameter in enumerate(parameters):
        parts = [gradients[position] for gradients, _ in results]
        known = [part.float() for part in parts if part is not None]
        parameter.grad = (
            torch.stack(known).sum(0) if known else torch.zeros_like(parameter)
        )
    return sum((tally for _, tally in results), LossTally())
