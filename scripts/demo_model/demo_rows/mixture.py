"""The demo mixture: all builders together, a held-out slice with other questions, and a manifest of counts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.demo_model.demo_rows import claims, instructions, long_form, short_form
from scripts.demo_model.demo_rows.drafts import Cutter, Draft, Lengths
from scripts.demo_model.demo_rows.sources import FILES, Sources, load
from selfrag.common.jsonl import write_jsonl
from selfrag.common.provenance import commit, sha256, versions
from selfrag.training.rows import TargetEvidence, TargetToken, TrainingRow, write_rows


@dataclass(frozen=True, slots=True)
class Mixture:
    """What goes into the demo rows."""

    seed: int = 2310  # every random choice follows from it
    heldout_seed: int = 2310  # decides which instructions are set aside; one number for all stages of a model
    heldout_per_mille: int = 32  # share of distinct instructions set aside
    lengths: Lengths = field(default_factory=Lengths)  # of passages
    # quotas of short questions; the other three likewise
    short_form: short_form.Quota = field(default_factory=short_form.Quota)
    claims: claims.Quota = field(default_factory=claims.Quota)
    instructions: instructions.Quota = field(default_factory=instructions.Quota)
    long_form: long_form.Quota = field(default_factory=long_form.Quota)


STAGES: tuple[Mixture, ...] = (
    Mixture(),
    # After the first stage the model took length for relevance, as its long passages were nearly all relevant. Here
    # half of the passages are long whatever their label, and articles that answer bring paragraphs that do not.
    Mixture(
        seed=2311,
        lengths=Lengths(usual=(60, 120), long=190, long_share=0.45),
        short_form=short_form.Quota(
            squad=750,
            neighbours=1150,
            answer_removed=300,
            unanswerable=550,
            judged=150,
            stance=80,
            random=40,
            wrong=60,
            same_article=750,
        ),
        claims=claims.Quota(
            fact_checks=250, wrong_verdicts=40, other_evidence=60, per_label=170
        ),
        instructions=instructions.Quota(
            arithmetic=120,
            choices=80,
            choices_with_passage=40,
            small_talk=60,
            poor=60,
            copies=1,
        ),
        long_form=long_form.Quota(introductions=150, two_passages=40, irrelevant=60),
    ),
    # After the second it still called most paragraphs of the right article relevant, whatever they said. Here most
    # negatives are on the topic; the rest of the mixture is there to be remembered.
    Mixture(
        seed=2312,
        lengths=Lengths(usual=(90, 150), long=210, long_share=0.5),
        short_form=short_form.Quota(
            squad=1400,
            neighbours=200,
            answer_removed=350,
            unanswerable=250,
            judged=50,
            stance=30,
            random=10,
            wrong=20,
            same_article=750,
            retitled=350,
            gold=1500,
        ),
        claims=claims.Quota(
            fact_checks=80, wrong_verdicts=15, other_evidence=20, per_label=50
        ),
        instructions=instructions.Quota(
            arithmetic=25,
            choices=25,
            choices_with_passage=15,
            small_talk=15,
            poor=20,
            copies=1,
            written=130,
        ),
        long_form=long_form.Quota(
            introductions=50, two_passages=12, irrelevant=20, summaries=30
        ),
    ),
)
"""The mixtures of the first three training stages of the published demo model."""

# After D_gen claims are at chance. Here are all claims with a verdict, beside the third stage's kinds of rows.
_CLAIMS = Mixture(
    seed=2315,
    lengths=STAGES[-1].lengths,
    short_form=replace(STAGES[-1].short_form, unanswerable=450),
    claims=claims.Quota(
        fact_checks=900,
        wrong_verdicts=15,
        other_evidence=40,
        per_label=100,
        labelled=420,
    ),
    instructions=STAGES[-1].instructions,
    long_form=STAGES[-1].long_form,
)
# The evidence of claims is short, and some has no title. The model took both for relevance, until passages without an
# answer were so as well.
_SHORT = replace(
    _CLAIMS,
    lengths=replace(_CLAIMS.lengths, short_share=0.1, untitled_share=0.2),
    short_form=replace(_CLAIMS.short_form, random=120),
    claims=replace(_CLAIMS.claims, other_evidence=300),
)
LAST: tuple[Mixture, ...] = (_CLAIMS, _SHORT)
"""Mixtures of two of the three runs that the last stage averages; the other one trains on the third stage's rows."""


@dataclass(frozen=True, slots=True)
class Split:
    """Shuffled rows to train on and rows set aside; no instruction is in both."""

    train: tuple[TrainingRow, ...]
    heldout: tuple[TrainingRow, ...]


def mix(sources: Sources, mixture: Mixture) -> Split:
    """Make all rows. The same sources and mixture give the same rows in the same order."""
    drafts = sorted(
        set(_all(sources, mixture)),
        key=lambda d: (d.source, d.instruction, repr(d.target)),
    )
    kept = [
        d
        for d in drafts
        for _ in range(d.copies)
        if not set_aside(d.instruction, mixture)
    ]
    aside = [d for d in drafts if set_aside(d.instruction, mixture)]
    shuffle = random.Random(mixture.seed).shuffle  # noqa: S311 - no cryptography
    shuffle(kept)
    shuffle(aside)
    return Split(_rows(kept, 0), _rows(aside, len(kept)))


def make(data: Path, out: Path, mixture: Mixture) -> dict[str, Any]:
    """Read `data`, write `rows.jsonl`, `heldout.jsonl` and a manifest into `out`, and return the manifest.

    Raises:
        UserError: a source file is missing or bad.
    """
    split = mix(load(data), mixture)
    write_rows(out / "rows.jsonl", split.train)
    write_rows(out / "heldout.jsonl", split.heldout)
    manifest = {
        "mixture": asdict(mixture),
        "commit": commit(),
        "versions": versions(("selfrag", "bm25s", "spacy", "numpy")),
        "sources": {name: sha256(data / name) for name in FILES},
        "train": describe(split.train),
        "heldout": describe(split.heldout),
    }
    write_jsonl(out / "manifest.json", [manifest])
    return manifest


def describe(rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Return counts of rows by source, reflection tokens by label, and rows by first token."""
    tokens: Counter[str] = Counter()
    first: Counter[str] = Counter()
    for row in rows:
        labels = [part.token for part in row.target if isinstance(part, TargetToken)]
        tokens.update(labels)
        first.update(labels[:1])
    return {
        "rows": len(rows),
        "sources": dict(sorted(Counter(row.source for row in rows).items())),
        "labels": dict(sorted(tokens.items())),
        "first": dict(sorted(first.items())),
    }


def _all(sources: Sources, mixture: Mixture) -> Iterator[Draft]:
    def chance(name: str) -> tuple[Cutter, random.Random]:
        rng = random.Random(f"{mixture.seed}/{name}")  # noqa: S311 - no cryptography
        return Cutter(mixture.lengths, rng), rng

    yield from short_form.drafts(sources, mixture.short_form, *chance("short_form"))
    yield from claims.drafts(sources, mixture.claims, *chance("claims"))
    yield from instructions.drafts(
        sources, mixture.instructions, *chance("instructions")
    )
    yield from long_form.drafts(sources, mixture.long_form, *chance("long_form"))


def _rows(drafts: Sequence[Draft], start: int) -> tuple[TrainingRow, ...]:
    """Return numbered rows, without those whose passage has no text left after its answer was taken out."""
    rows = []
    for number, draft in enumerate(drafts, start):
        evidence = [
            part.passage.text
            for part in draft.target
            if isinstance(part, TargetEvidence)
        ]
        if all(map(str.strip, evidence)):
            rows.append(draft.row(number))
    return tuple(rows)


def set_aside(instruction: str, mixture: Mixture) -> bool:
    """Return whether rows with this instruction are held out, in every stage with the same `heldout_seed`."""
    digest = hashlib.sha256(f"{mixture.heldout_seed}/{instruction}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < mixture.heldout_per_mille
