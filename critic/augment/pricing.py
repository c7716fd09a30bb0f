"""What the judgments of a run cost a trained critic: tokens, time, memory, from a sample of pairs. Loads no model.

Upper bounds, like the counts they go by: every pair retrieves, every sentence and passage is judged, and nothing is
shared. An engine that keeps prefixes computes about half of it, since IsRel and IsSup of a passage begin alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from critic.augment.estimate import Estimate
from critic.augment.options import Augmenting
from critic.augment.segments import segments
from critic.augment.sources import Source
from critic.cases import Case
from critic.pairs import Pair
from retrieval.passage import Passage
from retrieval.splitting import SentenceFinder

SAMPLE = 200
"""Pairs whose prompts are made."""


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of the dearest run.

    Attributes:
        tokens: of all prompts.
        seconds: of computing them, on a machine that does nothing else.
        gib: of the critic's weights.
    """

    tokens: int
    seconds: float
    gib: float

    def __str__(self) -> str:
        from selfrag.training.estimate import duration

        return (
            f"at most about {self.tokens} tokens in prompts, {duration(self.seconds)} of this machine alone"
            f" (about half where the engine keeps prefixes); {self.gib:.1f} GiB of weights, and the engine's cache"
        )


def price(
    source: Source, found: Estimate, options: Augmenting, find: SentenceFinder, critic: Path, *, workers: int = 2
) -> Price:
    """Price the judgments of a run.

    Args:
        source: the pairs.
        found: their counts.
        options: how they are augmented.
        find: gives the sentence spans of a text.
        critic: folder of the trained critic.
        workers: threads of a CPU that compute side by side.

    Raises:
        UserError: the folder holds no critic, or a bad row stops.
    """
    import torch

    from critic.student.prompt import read_card
    from retrieval.pretrained import fast_format
    from selfrag.loading import load_tokenizer, resolve_model
    from selfrag.training.estimate import EFFICIENCY, measured_rate, read_shape
    from selfrag.training.settings import TrainingConfig

    folder = resolve_model(critic)
    codec = read_card(folder, load_tokenizer(folder))
    shape = read_shape(folder, TrainingConfig())
    counts = [
        (len(codec.prompt(case).ids), times)
        for pair in islice((item for item in source if isinstance(item, Pair)), SAMPLE)
        if len(pair.instruction) + len(pair.output) <= options.longest
        for case, times in cases(pair, options, find, codec.limits.evidence)
    ]
    judged = sum(times for _, times in counts)
    tokens = round(found.judgments * sum(length * times for length, times in counts) / max(1, judged))
    work = tokens * 2 * shape.body + found.judgments * 2 * shape.head
    dtype = fast_format().name
    rate = measured_rate(workers, dtype=dtype).alone * EFFICIENCY
    return Price(tokens, work / rate, getattr(torch, dtype).itemsize * (shape.body + shape.vocabulary) / 2**30)


def cases(pair: Pair, options: Augmenting, find: SentenceFinder, longest: int) -> Iterator[tuple[Case, int]]:
    """The cases of a pair in the dearest run, and how often each is asked; unknown passages have `longest` words."""
    unknown = Passage("unknown", "passage " * longest)
    gold = pair.passages if options.gold != "off" else ()
    searched = 0 if gold and options.gold == "only" else options.passages
    whole = Case("IsUse", pair.instruction, output=pair.output)
    yield whole, 1
    yield replace(whole, group="Retrieve", output=pair.output if options.initial == "output" else ""), 1
    for number, (start, end) in enumerate(segments(pair.output, find(pair.output), options.shortest)):
        before, sentence = pair.output[:start].strip(), pair.output[start:end].strip()
        if number:
            yield Case("Retrieve", pair.instruction, before, sentence, gold[0] if gold else unknown), 1
        for passage, times in [*((one, 1) for one in gold), (unknown, searched)]:
            if times:
                yield Case("IsRel", pair.instruction, before, evidence=passage), times
                yield Case("IsSup", pair.instruction, before, sentence, passage), times
