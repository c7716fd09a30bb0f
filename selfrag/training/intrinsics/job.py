"""Training one adapter: labelled rows, base model and settings in; run, adapter with `intrinsic.json` and card out.

Optimiser, checkpoints and resumption are `selfrag.training.run`'s.

Recipes: `paper` has what arXiv 2504.11704 states: rank, learning rate, epochs, early stopping and the split. It states
no batch size, no alpha and no warm-up, and nothing for uncertainty; those are ours. `demo` trains all five in half an
hour on two idle CPU cores, on a model of 135M parameters: LoRA on the upper half of the layers, and some hundred rows.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfrag.chat_templates import render_chat
from selfrag.common.errors import UserError, count_of, require
from selfrag.intrinsics.catalog import AdapterCard, codec_of, find
from selfrag.judges.rendering import Renderer
from selfrag.judges.wire import DIALECT, ModelRequest, Target, Teachable
from selfrag.training.intrinsics.certainty import (
    certainty_rows,
    facts,
    own_answers,
    read_questions,
    unseen,
)
from selfrag.training.intrinsics.rows import (
    IntrinsicRow,
    asked_alone,
    evenly,
    gold_of,
    read_labelled,
    training_file,
    with_derived,
    without_evidence,
)
from selfrag.training.recipes import CONFIGS, GENERATOR, TrainingStage
from selfrag.training.reports import Product, write_card
from selfrag.training.rows import MASKED, TargetGroup, TrainingExample
from selfrag.training.settings import ADAPTER, RUN, TrainingConfig, Unset

if TYPE_CHECKING:
    from selfrag.training.run import PreparedRows


def make_examples(
    rows: Sequence[IntrinsicRow],
    codec: Teachable,
    renderer: Renderer,
    *,
    max_length: int,
    most_slots: int | None = None,
    seed: int = 0,
) -> tuple[list[tuple[IntrinsicRow, TrainingExample]], Counter[str]]:
    """Rows with their examples, one a target with the target's weight, and why rows gave none -> how many.

    Codec and renderer are those of inference. Examples longer than `max_length` are left out and counted: a prompt is
    never cut, inference would not do so. Of one row's targets at most `most_slots` are taken, drawn by `seed`; None
    for all.
    """
    made: list[tuple[IntrinsicRow, TrainingExample]] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        request = codec.encode(row.state)
        try:
            targets = codec.teach(request, gold_of(row, request))
        except UserError as error:
            raise UserError(f"row {row.id!r}: {error}") from error
        if not targets:
            skipped["no sentence with a label of its own"] += 1
            continue
        chosen = list(targets)
        if most_slots is not None and len(chosen) > most_slots:
            drawn = random.Random(f"{seed}/{row.id}")  # noqa: S311 - no cryptography
            places = sorted(drawn.sample(range(len(targets)), most_slots))
            chosen = [targets[place] for place in places]
        examples = [example(request, target, renderer) for target in chosen]
        fitting = [candidate for candidate in examples if len(candidate) <= max_length]
        if len(fitting) < len(chosen):
            skipped[f"longer than {count_of(max_length, 'tokens')}"] += 1
        made += [(row, candidate) for candidate in fitting]
    return made, skipped


def example(
    request: ModelRequest, target: Target, renderer: Renderer
) -> TrainingExample:
    """Return a target as an example: prompt and prefill are read, the rest and the end of turn are learned."""
    prompt = renderer.prompt(request.prompt)
    before, learned = renderer.reply(target.prefill, target.text)
    read = (*prompt, *before)
    end = renderer.end_id
    return TrainingExample(
        ids=(*read, *learned, end),
        labels=(*[MASKED] * len(read), *learned, end),
        groups=(
            *[int(TargetGroup.TEXT)] * (len(read) + len(learned)),
            int(TargetGroup.EOS),
        ),
        weight=target.weight,
    )


def invocation_of(renderer: Renderer) -> tuple[int, ...]:
    """Ids of the generation prompt.

    Raises:
        UserError: the template has none, or no control token in it, so that a text could switch the adapter on.
    """
    if not getattr(renderer.tokenizer, "chat_template", None):
        raise UserError(
            "the tokenizer has no chat template, so nothing marks where the assistant begins"
        )
    turns = [{"role": "user", "content": "x"}]
    closed = render_chat(renderer.tokenizer, turns, add_generation_prompt=False)
    opened = render_chat(renderer.tokenizer, turns)
    if not opened.startswith(closed) or opened == closed:
        raise UserError(
            "the chat template does not open the assistant's turn; train a plain LoRA"
        )
    opening = opened[len(closed) :]
    ids = tuple(renderer.control(opening))
    if renderer.text.encode(opening) == list(ids):
        raise UserError(
            "the assistant's turn begins with ordinary text; train a plain LoRA"
        )
    return ids


@dataclass(frozen=True, slots=True)
class RowSelection:
    """How rows are chosen."""

    # at most this many of those that give an example; None for all
    most_rows: Unset[int] = None
    # sources alike in number, as far as they have rows; else in proportion. A source is a data set with a label, so a
    # label is then not guessed by where a row is from.
    even: bool = False
    most_slots: Unset[int] = None  # at most this many targets of one row; None for all
    held_out: float = 0.1  # share of the rows to validate on; the paper's 90/10
    # further rows of citations with their evidence cut out, so that there is nothing to cite, as a share
    uncited: float = 0.0
    standalone: float = 0.0  # further rows of query rewrite whose last question stands on its own already, as a share


ADAPTERS = TrainingStage(
    "intrinsics",
    CONFIGS / "intrinsics",
    {"training": TrainingConfig, "rows": RowSelection},
    (GENERATOR,),
)


def product(card: AdapterCard, last_layers: int | None) -> Product:
    """Return an adapter in the words of its model card."""
    layers = (
        "all layers"
        if last_layers is None
        else f"at most the last {count_of(last_layers, 'layers')}"
    )
    return Product(
        f"{card.intrinsic}: {'activated LoRA (aLoRA)' if card.invocation else 'LoRA'}",
        f"Dialect `{card.dialect}`, rank {card.rank}, {layers}.",
        "peft",
        tag="intrinsic",
        advice="What it is good for, `selfrag eval intrinsics` measures on rows that were not trained on.",
    )


@dataclass(frozen=True, slots=True)
class AdapterJob:
    """What to train, from what, and where to."""

    intrinsic: str  # its name
    data: Path  # folder with the intrinsic's training file, or the file
    base: Path  # directory of the base checkpoint
    out: Path  # folder of the job
    config: TrainingConfig  # what decides the result, next to the files
    selection: RowSelection = field(default_factory=RowSelection)  # choice of rows
    dialect: str = DIALECT  # whose codec the adapter speaks
    # an activated LoRA, switched on by the start of the assistant's turn
    activated: bool = False
    recipe: str = ""  # its name, for the card
    # for uncertainty: a file of rows the base model was trained on; questions in it are left out
    seen: Path | None = None
    # what the card calls the base; by default as `training.job.base_name` does
    base_name: str = ""
    # adapter, or finished run, to begin with: of the same size, and on a base that is no stranger to it
    start: Path | None = None

    @property
    def adapter(self) -> Path:
        """Return where the adapter goes."""
        return self.out / ADAPTER

    @property
    def run_dir(self) -> Path:
        """Manifest, log and checkpoints."""
        return self.out / RUN


def run(job: AdapterJob) -> Path:
    """Train, or continue, and write what comes out; returns the adapter's folder. A finished run adds what is missing.

    Raises:
        UserError: rows, base or settings cannot be used, or the folder holds another run.
    """
    from selfrag.loading import load_tokenizer
    from selfrag.training.export import save_adapter, shape
    from selfrag.training.job import base_name
    from selfrag.training.run import fit

    if job.intrinsic == "uncertainty":
        # its answers are calibrated after hours of asking
        require("scipy", extra="eval")
    codec = teachable(job.intrinsic, job.dialect)
    rows, more = load_rows(job)
    config = job.config
    if job.activated:
        invocation = invocation_of(Renderer.of(load_tokenizer(job.base)))
        config = replace(
            config, reach=replace(config.reach, token_rows=False, invocation=invocation)
        )
    if config.reach.token_rows:
        raise UserError(
            "an adapter of an intrinsic leaves the vocabulary as it is: set token_rows = false"
        )

    def prepare(tokenizer: Any) -> PreparedRows:
        return prepared(
            rows, codec, Renderer.of(tokenizer), replace(job, config=config), more
        )

    trainee = fit(prepare, job.base, job.run_dir, config, start=job.start)
    card = AdapterCard.of(
        codec,
        rank=config.lora.rank,
        base=shape(trainee.causal),
        invocation=config.reach.invocation,
    )
    if not job.adapter.exists():
        save_adapter(trainee, job.adapter, beside={AdapterCard.FILE: card.as_dict()})
    base = job.base_name or base_name(job.base)
    write_card(
        job.run_dir,
        job.adapter,
        product(card, config.reach.last_layers),
        base=base,
        recipe=job.recipe,
    )
    return job.adapter


def teachable(intrinsic: str, dialect: str = DIALECT) -> Teachable:
    """Return the codec to train with.

    Raises:
        UserError: unknown, or the dialect cannot say what a perfect model would answer.
    """
    codec = codec_of(find(intrinsic), dialect)
    if not callable(getattr(codec, "teach", None)):
        raise UserError(
            f"the dialect {dialect!r} has no training targets for {intrinsic}; train with {DIALECT!r}"
        )
    return codec  # type: ignore[return-value]  # checked above; protocols cannot say it


def load_rows(job: AdapterJob) -> tuple[list[IntrinsicRow], dict[str, Any]]:
    """Read all rows of a job, and facts about how they came about.

    Raises:
        UserError: as `rows.read_labelled`; for uncertainty, as `own_answers` and `certainty_rows`.
    """
    train = training_file(job.intrinsic, job.data)
    if job.intrinsic != "uncertainty":
        rows = with_derived(
            read_labelled(train, job.intrinsic), without_evidence, job.selection.uncited
        )
        return with_derived(rows, asked_alone, job.selection.standalone), {}
    questions = read_questions(train)
    if job.seen is not None:
        questions = unseen(questions, _texts(job.seen))
    if job.selection.most_rows is not None:  # two rows a question
        questions = evenly(questions, -(-job.selection.most_rows // 2))
    answers = own_answers(
        questions, job.base, job.out / "answers.jsonl", device=job.config.device
    )
    rows = certainty_rows(answers, seed=job.config.seed)
    return rows, facts(answers, rows)


def chosen(
    rows: Sequence[IntrinsicRow], most: int | None, seed: int, *, even: bool = False
) -> list[IntrinsicRow]:
    """Return at most `most` rows (None for all), drawn by `seed`, in the order of the file.

    With `even` as many rows of each source as of any other, as far as it has them; else every source in proportion.
    """
    if most is None or len(rows) <= most:
        return list(rows)
    order = sorted(
        range(len(rows)),
        key=lambda at: random.Random(f"{seed}/{rows[at].id}").random(),  # noqa: S311
    )
    places: Counter[str] = Counter()
    ranks = []
    sizes = Counter(row.source for row in rows)
    for at in order:
        ranks.append(
            (places[rows[at].source] / (1 if even else sizes[rows[at].source]), at)
        )
        places[rows[at].source] += 1
    kept = {at for _, at in sorted(ranks)[:most]}
    return [row for at, row in enumerate(rows) if at in kept]


def prepared(
    rows: Sequence[IntrinsicRow],
    codec: Teachable,
    renderer: Renderer,
    job: AdapterJob,
    more: dict[str, Any],
) -> PreparedRows:
    """Examples of a run, a share of them held out with whole groups.

    Rows that are too long or have no label are out before any are chosen, so none is chosen in vain.
    """
    from selfrag.training.run import PreparedRows, split_off

    made, skipped = make_examples(
        rows,
        codec,
        renderer,
        max_length=job.config.max_length,
        most_slots=job.selection.most_slots,
        seed=job.config.seed,
    )
    if not made:
        raise UserError(
            f"no row gives an example of at most {count_of(job.config.max_length, 'tokens')}: {dict(skipped)}"
        )
    giving = list({row.id: row for row, _ in made}.values())
    rows = chosen(
        giving, job.selection.most_rows, job.config.seed, even=job.selection.even
    )
    if left := len(giving) - len(rows):
        skipped["not among the rows chosen"] = left
    ids = {row.id for row in rows}
    kept = [(row, row_example) for row, row_example in made if row.id in ids]
    examples = [row_example for _, row_example in kept]
    digest = hashlib.sha256(
        json.dumps([(e.ids, e.labels) for e in examples]).encode()
    ).hexdigest()
    unsplit = PreparedRows(
        examples, [row.source for row, _ in kept], {"examples": digest}
    )
    split = split_off(
        unsplit, [row.group for row, _ in kept], job.selection.held_out, job.config.seed
    )
    facts = {
        "rows": len(rows),
        "examples": len(split.examples),
        "held_out": len(split.validation),
        "sources": dict(sorted(Counter(split.strata).items())),
        "skipped": dict(skipped),
    }
    return replace(split, facts=facts | more)


def _texts(path: Path) -> list[str]:
    from selfrag.common.jsonl import read_jsonl

    return [
        str(text)
        for text in read_jsonl(path, lambda record: record.get("instruction", ""))
    ]
