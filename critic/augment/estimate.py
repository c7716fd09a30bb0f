"""What a run will ask for, before it is paid for: pairs, sentences, judgments, searches. Knows no critic."""

from __future__ import annotations

from dataclasses import dataclass

from critic.augment.options import Augmenting
from critic.augment.segments import segments
from critic.augment.sources import Source
from critic.pairs import Pair
from retrieval.splitting import SentenceFinder


@dataclass(frozen=True, slots=True)
class Estimate:
    """Counts of a source.

    Attributes:
        items: rows of it, bad ones included.
        pairs: those that will be augmented.
        sentences: of their outputs.
        judgments: most cases the critic can get: every pair retrieves, every sentence and every passage is relevant.
        searches: most searches.
    """

    items: int
    pairs: int
    sentences: int
    judgments: int
    searches: int

    def __str__(self) -> str:
        return (
            f"{self.pairs} of {self.items} rows with {self.sentences} sentences;"
            f" at most {self.judgments} judgments and {self.searches} searches"
        )


def estimate(source: Source, options: Augmenting, find: SentenceFinder) -> Estimate:
    """Read the whole source once.

    Raises:
        UserError: a row is bad and bad rows stop.
    """
    items = pairs = sentences = judgments = searches = 0
    for item in source:
        items += 1
        if not isinstance(item, Pair) or len(item.instruction) + len(item.output) > options.longest:
            continue
        count = len(segments(item.output, find(item.output), options.shortest))
        gold = len(item.passages) if options.gold != "off" else 0
        searching = not (gold and options.gold == "only")
        pairs += 1
        sentences += count
        judgments += 2 + (count - 1) + 2 * count * (gold + options.passages * searching)
        searches += (count + (count > 1)) * searching
    return Estimate(items, pairs, sentences, judgments, searches)
