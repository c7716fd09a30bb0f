"""`load`: rows of a source through the loader of a format, with the filters of the paper's mix, duplicates left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from critic.pairs import Pair
from critic.sources.formats import Format
from critic.sources.language import detector
from critic.sources.raw import Outcome, Skipped
from critic.sources.reading import Source, raw_rows
from retrieval.checks import whole
from retrieval.errors import UserError


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read.

    Attributes:
        split: which part of a source that holds several under their names.
        dataset: name of the data set in the pairs; empty for the format's own.
        most_words: pairs with more words in the instruction or in the output are skipped (paper's code: 500).
        language: two letters; pairs in another language are skipped. None takes all.
    """

    split: str = "train"
    dataset: str = ""
    most_words: int = 500
    language: str | None = None

    def __post_init__(self) -> None:
        whole("most_words", self.most_words)


def load(source: Source, form: Format, reading: Reading | None = None) -> Iterator[Outcome]:
    """Pairs of a source in its order, and the rows that give none.

    Args:
        source: a file, or rows such as a Hugging Face data set, streamed ones too.
        form: what its rows look like; see `FORMATS`.
        reading: filters.

    Yields:
        `Pair` with an id that is unique among those of this call, or `Skipped`.

    Raises:
        UserError: the source cannot be read or a row is not in this format (names `file:line`), or no row is a pair.
    """
    reading = reading or Reading()
    rows = raw_rows(source, reading.split)
    spoken = None if reading.language is None or form.says_language else detector(reading.language)
    seen: set[str] = set()
    count = 0
    last = Skipped("", "")
    for outcome in form.read(rows, reading.dataset or form.dataset, reading.language):
        count += 1
        if isinstance(outcome, Pair):
            reason = _objection(outcome, reading)
            if outcome.id in seen:
                reason = f"an id that occurred before ({outcome.id:.80})"
            elif not reason and spoken and not (spoken(outcome.instruction) and spoken(outcome.output)):
                reason = f"not in {reading.language!r}"
            if reason:
                outcome = Skipped(outcome.id, reason)
            else:
                seen.add(outcome.id)
        if isinstance(outcome, Skipped):
            last = outcome
        yield outcome
    if not seen:
        why = f" ({count} skipped; the last: {last.place}: {last.reason})" if count else ""
        raise UserError(f"no pair in the {form.name} source{why}; check the format and the split")


def _objection(pair: Pair, reading: Reading) -> str:
    for name, text in (("instruction", pair.instruction), ("output", pair.output)):
        if len(text.split()) > reading.most_words:
            return f"more than {reading.most_words} words in the {name}"
    return ""
