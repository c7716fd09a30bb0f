"""Cost of a run before it is paid for: judgments and searches, and tokens, time and memory of a trained critic.

All figures are upper bounds: every pair retrieves, every sentence and passage is judged, and nothing is shared. An
engine that keeps prefixes computes about half of it, since IsRel and IsSup of a passage begin alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from critic.augment.algorithm import AugmentOptions, segments
from critic.cases import Case
from critic.pairs import Pair, Source
from retrieval.passage import Passage
from retrieval.progress import duration
from retrieval.splitting import SentenceFinder, Span

SAMPLE = 200
"""Pairs whose prompts are made to price a run."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Counts of a source: all its rows, the pairs that will be augmented, their sentences, most judgments, searches."""

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


def estimate(source: Source, options: AugmentOptions, find: SentenceFinder) -> Estimate:
    """Read the whole source once and count.

    Raises:
        UserError: a row is bad and bad rows stop.
    """
    items = pairs = sentences = judgments = searches = 0
    for item in source:
        items += 1
        if isinstance(item, Pair) and len(item.instruction) + len(item.output) <= options.longest:
            spans = segments(item.output, find(item.output), options.shortest)
            pairs += 1
            sentences += len(spans)
            judgments += sum(times for _, times in cases(item, spans, options, Passage("unknown", "")))
            if not (item.passages and options.gold == "only"):
                searches += len(spans) + (len(spans) > 1)
    return Estimate(items, pairs, sentences, judgments, searches)


def cases(pair: Pair, spans: list[Span], options: AugmentOptions, unknown: Passage) -> Iterator[tuple[Case, int]]:
    """The cases of a pair in the dearest run, and how often each is asked; `unknown` stands for retrieved passages."""
    gold = pair.passages if options.gold != "off" else ()
    searched = 0 if gold and options.gold == "only" else options.passages
    yield Case("IsUse", pair.instruction, output=pair.output), 1
    yield Case("Retrieve", pair.instruction, output=pair.output if options.initial == "output" else ""), 1
    for number, (start, end) in enumerate(spans):
        before, sentence = pair.output[:start].strip(), pair.output[start:end].strip()
        if number or (options.first == "judged" and len(spans) > 1):
            yield Case("Retrieve", pair.instruction, before, sentence, gold[0] if gold else unknown), 1
        for passage, times in [*((one, 1) for one in gold), (unknown, searched)]:
            if times:
                yield Case("IsRel", pair.instruction, before, evidence=passage), times
                yield Case("IsSup", pair.instruction, before, sentence, passage), times


@dataclass(frozen=True, slots=True)
class Price:
    """Tokens of all prompts, seconds to compute them on a machine that does nothing else, GiB of the weights."""

    tokens: int
    seconds: float
    gib: float

    def __str__(self) -> str:
        return (
            f"at most about {self.tokens} tokens in prompts, {duration(self.seconds)} of this machine alone"
            f" (about half where the engine keeps prefixes); {self.gib:.1f} GiB of weights, and the engine's cache"
        )


def price(source: Source, found: Estimate, options: AugmentOptions, find: SentenceFinder, critic: Path) -> Price:
    """Price the judgments of a run from a sample of its pairs. Loads no model.

    Args:
        source: the pairs.
        found: their counts.
        options: how they are augmented.
        find: gives the sentence spans of a text.
        critic: folder of the trained critic.

    Raises:
        UserError: the folder holds no critic, or a bad row stops.
    """
    import torch

    from critic.student.prompt import read_card
    from retrieval.pretrained import fast_format
    from selfrag.loading import load_tokenizer
    from selfrag.training.estimate import EFFICIENCY, measured_rate, read_shape
    from selfrag.training.settings import TrainingConfig

    codec = read_card(critic, load_tokenizer(critic))
    shape = read_shape(critic, TrainingConfig())
    unknown = Passage("unknown", "passage " * codec.limits.evidence)
    judged = length = 0
    for pair in islice((item for item in source if isinstance(item, Pair)), SAMPLE):
        if len(pair.instruction) + len(pair.output) <= options.longest:
            spans = segments(pair.output, find(pair.output), options.shortest)
            for case, times in cases(pair, spans, options, unknown):
                judged += times
                length += times * len(codec.prompt(case).ids)
    tokens = round(found.judgments * length / max(1, judged))
    work = tokens * 2 * shape.body + found.judgments * 2 * shape.head
    dtype = fast_format().name
    rate = measured_rate(2, dtype=dtype).alone * EFFICIENCY
    return Price(tokens, work / rate, getattr(torch, dtype).itemsize * (shape.body + shape.vocabulary) / 2**30)
