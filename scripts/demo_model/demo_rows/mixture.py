"""The demo mixture: all builders together, a held-out slice with other questions, and a manifest of counts."""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from scripts.demo_model.demo_rows import claims, instructions, long_form, short_form
from scripts.demo_model.demo_rows.drafts import Cutter, Draft, Lengths
from scripts.demo_model.demo_rows.sources import FILES, Sources, load
from selfrag.common.jsonl import write_jsonl
from selfrag.common.provenance import commit, sha256, versions
from selfrag.common.validation import validate
from selfrag.training.rows import TargetEvidence, TargetToken, TrainingRow, write_rows

# The fields below have the names of the modules, so their types need other ones.
ShortFormQuota = short_form.Quota
ClaimQuota = claims.Quota
InstructionQuota = instructions.Quota
LongFormQuota = long_form.Quota


@dataclass(frozen=True, slots=True)
class Mixture:
    """What goes into the demo rows."""

    seed: int = 2310  # every random choice follows from it
    heldout_seed: int = 2310  # decides which instructions are set aside; one number for all stages of a model
    heldout_per_mille: int = 32  # share of distinct instructions set aside
    lengths: Lengths = field(default_factory=Lengths)  # of passages
    # quotas of short questions; the other three likewise
    short_form: ShortFormQuota = field(default_factory=ShortFormQuota)
    claims: ClaimQuota = field(default_factory=ClaimQuota)
    instructions: InstructionQuota = field(default_factory=InstructionQuota)
    long_form: LongFormQuota = field(default_factory=LongFormQuota)


def _read(name: str) -> tuple[Mixture, ...]:
    text = files(__package__).joinpath("mixtures.toml").read_text(encoding="utf-8")
    return tuple(validate(Mixture, values) for values in tomllib.loads(text)[name])


STAGES = _read("stages")
"""The mixtures of the first three training stages of the published demo model."""
LAST = _read("last")
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
