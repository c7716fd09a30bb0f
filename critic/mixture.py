"""A mixture of public data sets as one file of pairs: filters, seeded draws, counts of what was left out and why."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, TypeVar

from critic.formats import PairFormat
from critic.pairs import Dropped, Pair, PairOutcome
from selfrag.common.public_rows import RowSource, raw_rows
from selfrag.interface import (
    UserError,
    check_int,
    commit,
    count_of,
    require,
    sha256,
    versions,
    write_json,
    write_jsonl,
    writing,
)

T = TypeVar("T")
_SHOWN = 5  # places a reason
_ENOUGH = 2_000  # characters that decide on the language; more hardly change the answer


@dataclass(frozen=True, slots=True)
class MixtureReading:
    """How a source is read."""

    split: str = "train"  # which part of a source that holds several under their names
    most_words: int = 500  # pairs with more words in the instruction or in the output are skipped (paper's code: 500)
    # two letters; pairs in another language are skipped. None takes all.
    language: str | None = None

    def __post_init__(self) -> None:
        check_int("most_words", self.most_words)


def load(
    source: RowSource, form: PairFormat, reading: MixtureReading | None = None
) -> Iterator[PairOutcome]:
    """Pairs of a source in its order, each with an id of its own, and the rows that give none.

    A `UserError` names the place of a row that is not in this format, or says that no row is a pair.
    """
    reading = reading or MixtureReading()
    rows = raw_rows(source, reading.split)
    spoken = (
        None
        if reading.language is None or form.says_language
        else _detector(reading.language)
    )
    seen: set[str] = set()
    count, last = 0, Dropped("", "")
    for outcome in form.read(rows, form.dataset, reading.language):
        count += 1
        kept = outcome
        if isinstance(kept, Pair):
            if reason := _objection(kept, reading, spoken, seen):
                kept = Dropped(kept.id, reason)
            else:
                seen.add(kept.id)
        if isinstance(kept, Dropped):
            last = kept
        yield kept
    if not seen:
        why = ""
        if count:
            why = f" ({count} skipped; the last: {last.id}: {last.reason})"
        raise UserError(
            f"no pair in the {form.name} source{why}; check the format and the split"
        )


def _objection(
    pair: Pair,
    reading: MixtureReading,
    spoken: Callable[[str], bool] | None,
    seen: set[str],
) -> str:
    """Return why a pair is left out, if it is."""
    if pair.id in seen:
        return f"an id that occurred before ({pair.id:.80})"
    for name, text in (("instruction", pair.instruction), ("output", pair.output)):
        if len(text.split()) > reading.most_words:
            return f"more than {count_of(reading.most_words, 'words')} in the {name}"
    understood = spoken is None or (spoken(pair.instruction) and spoken(pair.output))
    if understood:
        return ""
    return f"not in {reading.language!r}"


def _detector(language: str) -> Callable[[str], bool]:
    """Return a test whether a text is in `language` (ISO 639-1), for sources that do not say it themselves."""
    if not re.fullmatch("[a-z]{2,3}", language):
        raise UserError(f"{language!r} is no code of a language, such as 'en'")
    classify = require("py3langid", extra="data").classify
    return lambda text: bool(classify(text[:_ENOUGH])[0] == language)


class SeededSample(Generic[T]):
    """At most `count` of the items added so far; no more are held at any time.

    Each item gets a number from its id and the seed, and the smallest numbers win. So order, shards and machines do not
    matter, and a smaller sample of the same seed is part of a larger one (data-size studies).
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        # a heap with the largest number on top
        self._kept: list[tuple[int, int, T]] = []
        self._added = 0

    def add(self, key: str, item: T) -> None:
        """Offer an item under its id, which no other item has."""
        self._added += 1
        digest = blake2b(
            f"{self._seed}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8
        ).digest()
        heapq.heappush(self._kept, (-int.from_bytes(digest), -self._added, item))
        if len(self._kept) > self._count:
            heapq.heappop(self._kept)

    def items(self) -> list[T]:
        """Return the sample, in the order in which it was added."""
        return [item for _, _, item in sorted(self._kept, key=lambda entry: -entry[1])]


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One source of a mixture."""

    form: PairFormat  # what its rows look like
    source: RowSource  # a file, or rows
    count: int | None = None  # pairs to draw; None takes all


@dataclass(slots=True)
class MixtureTally:
    """What became of the rows of one source; `taken` of `pairs` are in the mixture."""

    source: str
    pairs: int = 0
    taken: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, row: Dropped) -> None:
        """Count a row that is no pair, and remember where the first few stand."""
        reason = row.reason.partition(" (")[0]
        self.skipped[reason] += 1
        if self.skipped[reason] <= _SHOWN:
            self.places.setdefault(reason, []).append(row.id)


def pairs(
    part: MixturePart,
    tally: MixtureTally,
    reading: MixtureReading | None = None,
    seed: int = 0,
) -> Iterator[Pair]:
    """Yield the pairs drawn from one part, in their order; `tally` is complete when the last is taken."""
    if part.count is not None and part.count < 0:
        raise UserError(
            f"{part.form.name}: {count_of(part.count, 'pairs')} cannot be drawn; 0 or more"
        )
    from tqdm import tqdm

    sample: SeededSample[Pair] | None = (
        None if part.count is None else SeededSample(part.count, seed)
    )
    rows = load(part.source, part.form, reading)
    for outcome in tqdm(rows, desc=part.form.name, unit=" rows", delay=1, disable=None):
        if isinstance(outcome, Dropped):
            tally.skip(outcome)
            continue
        tally.pairs += 1
        if sample is not None:
            sample.add(outcome.id, outcome)
        else:
            tally.taken += 1
            yield outcome
    for pair in sample.items() if sample is not None else ():
        tally.taken += 1
        yield pair


def write_mixture(
    path: str | Path,
    parts: Sequence[MixturePart],
    *,
    seed: int = 0,
    reading: MixtureReading | None = None,
) -> list[MixtureTally]:
    """Write all parts as one file of pairs, and `<path>.manifest.json` beside it; a tally for each part.

    The file appears under its name only when it is complete, so an interrupted run is simply started again.
    """
    path = Path(path)
    tallies = [MixtureTally(_name(part.source)) for part in parts]
    seen: dict[str, str] = {}

    def records() -> Iterator[dict[str, Any]]:
        for part, tally in zip(parts, tallies, strict=True):
            for pair in pairs(part, tally, reading, seed):
                if pair.id in seen:
                    raise UserError(
                        f"id {pair.id!r} comes from {seen[pair.id]} and from {tally.source}; leave one out"
                    )
                seen[pair.id] = tally.source
                yield pair.as_dict()

    with writing(path):
        write_jsonl(path, records())
    manifest = {
        "what": "pairs",
        "pairs": sum(tally.taken for tally in tallies),
        "sha256": sha256(path),
        "seed": seed,
        "reading": asdict(reading or MixtureReading()),
        "parts": [
            _described(part, tally) for part, tally in zip(parts, tallies, strict=True)
        ],
        "commit": commit(),
        "versions": versions(("selfrag", "datasets", "pyarrow", "py3langid")),
    }
    write_json(path.with_name(f"{path.name}.manifest.json"), manifest)
    return tallies


def _described(part: MixturePart, tally: MixtureTally) -> dict[str, Any]:
    return {
        "format": part.form.name,
        "source": tally.source,
        "sha256": sha256(Path(part.source))
        if isinstance(part.source, str | Path)
        else None,
        "wanted": part.count,
        "pairs": tally.pairs,
        "taken": tally.taken,
        "skipped": dict(tally.skipped.most_common()),
        "first_skipped": tally.places,
    }


def _name(source: RowSource) -> str:
    if isinstance(source, str | Path):
        return Path(source).name
    info = getattr(source, "info", None)
    return str(getattr(info, "dataset_name", None) or type(source).__name__)
