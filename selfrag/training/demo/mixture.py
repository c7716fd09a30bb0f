"""The demo mixture: all builders together, a held-out slice with other questions, and a manifest of counts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfrag.experiments.provenance import commit, sha256, versions
from selfrag.jsonl import write_jsonl
from selfrag.training.demo import claims, instructions, long_form, short_form
from selfrag.training.demo.draft import Draft
from selfrag.training.demo.sources import FILES, Sources, load
from selfrag.training.rows import Evidence, Row, Text, Token, write_rows


@dataclass(frozen=True, slots=True)
class Mixture:
    """What goes into the demo rows.

    Attributes:
        seed: every random choice follows from it.
        heldout_per_mille: share of distinct instructions set aside.
        short_form: quotas of short questions; the other three likewise.
    """

    seed: int = 2310
    heldout_per_mille: int = 32
    short_form: short_form.Quota = field(default_factory=short_form.Quota)
    claims: claims.Quota = field(default_factory=claims.Quota)
    instructions: instructions.Quota = field(default_factory=instructions.Quota)
    long_form: long_form.Quota = field(default_factory=long_form.Quota)


@dataclass(frozen=True, slots=True)
class Split:
    """Shuffled rows to train on and rows set aside; no instruction is in both."""

    train: tuple[Row, ...]
    heldout: tuple[Row, ...]


def mix(sources: Sources, mixture: Mixture) -> Split:
    """Make all rows. The same sources and mixture give the same rows in the same order."""
    drafts = sorted(set(_all(sources, mixture)), key=lambda d: (d.source, d.instruction, repr(d.target)))
    kept = [d for d in drafts for _ in range(d.copies) if not _set_aside(d.instruction, mixture)]
    aside = [d for d in drafts if _set_aside(d.instruction, mixture)]
    shuffle = random.Random(mixture.seed).shuffle  # noqa: S311 - no cryptography
    shuffle(kept)
    shuffle(aside)
    return Split(_rows(kept, 0), _rows(aside, len(kept)))


def make(data: Path, out: Path, mixture: Mixture) -> dict[str, Any]:
    """Read `data`, write `out`, `heldout.jsonl` and a manifest beside it, and return the manifest.

    Raises:
        UserError: a source file is missing or bad.
    """
    split = mix(load(data), mixture)
    write_rows(out, split.train)
    write_rows(out.with_name("heldout.jsonl"), split.heldout)
    manifest = {
        "mixture": asdict(mixture),
        "commit": commit(),
        "versions": versions(("selfrag", "bm25s", "spacy", "numpy")),
        "sources": {name: sha256(data / name) for name in FILES},
        "train": describe(split.train),
        "heldout": describe(split.heldout),
    }
    write_jsonl(out.with_name("manifest.json"), [manifest])
    return manifest


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts of rows by source, reflection tokens by label, rows by first token, and the mean length in words."""
    tokens = Counter(part.token for row in rows for part in row.target if isinstance(part, Token))
    first = Counter(part.token for row in rows for part in row.target[:1] if isinstance(part, Token))
    words = sum(map(_words, rows))
    return {
        "rows": len(rows),
        "mean_words": round(words / max(1, len(rows)), 1),
        "sources": dict(sorted(Counter(row.source for row in rows).items())),
        "labels": dict(sorted(tokens.items())),
        "first": dict(sorted(first.items())),
    }


def _all(sources: Sources, mixture: Mixture) -> Iterator[Draft]:
    def rng(name: str) -> random.Random:
        return random.Random(f"{mixture.seed}/{name}")  # noqa: S311 - no cryptography

    yield from short_form.drafts(sources, mixture.short_form, rng("short_form"))
    yield from claims.drafts(sources, mixture.claims, rng("claims"))
    yield from instructions.drafts(sources, mixture.instructions, rng("instructions"))
    yield from long_form.drafts(sources, mixture.long_form, rng("long_form"))


def _rows(drafts: Sequence[Draft], start: int) -> tuple[Row, ...]:
    """Numbered rows, without those whose passage has no text left after its answer was taken out."""
    rows = (draft.row(number) for number, draft in enumerate(drafts, start))
    return tuple(
        row for row in rows if all(part.passage.text.strip() for part in row.target if isinstance(part, Evidence))
    )


def _set_aside(instruction: str, mixture: Mixture) -> bool:
    digest = hashlib.sha256(f"{mixture.seed}/{instruction}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < mixture.heldout_per_mille


def _words(row: Row) -> int:
    texts = [row.instruction]
    for part in row.target:
        match part:
            case Text(text):
                texts.append(text)
            case Evidence(passage):
                texts += [passage.title, passage.text]
    return sum(len(text.split()) for text in texts)
