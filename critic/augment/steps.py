"""The augmentation of one pair as a generator that touches no model (Algorithm 3; appendix A.3).

It yields requests, receives results, and returns an `Augmented` or a `Dropped`. A request is a `Case` for the critic or
a `Retrieve` for the retriever. Knows no batch, no file and no row format.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from critic.augment.augmented import (
    CONTINUE,
    NO_RETRIEVAL,
    RETRIEVAL,
    Augmented,
    Candidate,
    Dropped,
    Segment,
    writable,
)
from critic.augment.choosing import choose, ranked
from critic.augment.options import Augmenting
from critic.augment.segments import segments
from critic.cases import Case
from critic.pairs import Pair
from retrieval.passage import Passage
from retrieval.splitting import SentenceFinder, Span
from selfrag.decoding.requests import Failed, Retrieve, Retrieved
from selfrag.prompting import SELFRAG
from selfrag.reflection.judgment import Judgment

Request: TypeAlias = Case | Retrieve
Result: TypeAlias = Judgment | Retrieved | Failed | None
Steps: TypeAlias = Generator[list[Request], Sequence[Result], Augmented | Dropped]
Judging: TypeAlias = Generator[list[Request], Sequence[Result], list[Judgment | None]]
Searching: TypeAlias = Generator[list[Request], Sequence[Result], tuple[Passage, ...]]


class _DropError(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def augment(pair: Pair, options: Augmenting, find: SentenceFinder) -> Steps:
    """Write reflection tokens into one pair.

    Args:
        pair: what to augment.
        options: how.
        find: gives the sentence spans of a text.

    Returns:
        The augmented pair, or why there is none.
    """
    try:
        _check(pair, options)
        return (yield from _Work(pair, options, find).run())
    except _DropError as drop:
        return Dropped(pair.id, drop.reason, drop.detail)


def _check(pair: Pair, options: Augmenting) -> None:
    """Refuse what could not be trained on, before anything is spent on it."""
    size = len(pair.instruction) + len(pair.output)
    if size > options.longest:
        raise _DropError("too long", f"{size} characters; the limit is {options.longest}")
    if not writable(pair.id, pair.dataset, pair.kind, pair.instruction, pair.output):
        raise _DropError("not Unicode", "a lone surrogate, which no UTF-8 file can hold")


@dataclass(slots=True)
class _Work:
    """State of one pair: the passage in use, and what the initial search found."""

    pair: Pair
    options: Augmenting
    find: SentenceFinder
    used: Passage | None = None
    first_query: str | None = None
    found: tuple[Passage, ...] = ()

    def run(self) -> Steps:
        pair = self.pair
        # Utility depends on the whole output alone, so it is asked for at once; its token is the last all the same.
        whole = Case("IsUse", pair.instruction, output=pair.output)
        shown = pair.output if self.options.initial == "output" else ""
        retrieve, use = yield from _judged([replace(whole, group="Retrieve", output=shown), whole])
        if retrieve is None or use is None:
            raise _DropError("undecided", f"the critic gave no {'Retrieve' if retrieve is None else 'IsUse'} label")
        ratio = _ratio(retrieve)
        if ratio <= self.options.threshold:
            why = f"initial decision: {ratio:.3f} is not above {self.options.threshold:g}"
            written = [Segment(0, len(pair.output), NO_RETRIEVAL, why)]
        else:
            if not (pair.passages and self.options.gold == "only"):
                self.first_query = self.query(pair.output)
                self.found = yield from self.search(self.first_query)
            spans = segments(pair.output, self.find(pair.output), self.options.shortest)
            written = []
            for span in spans:
                written.append((yield from self.segment(span, len(spans), ratio)))
        return Augmented(pair, retrieve, ratio, self.first_query, self.found, tuple(written), use)

    def segment(self, span: Span, count: int, ratio: float) -> Generator[list[Request], Sequence[Result], Segment]:
        """Decide one segment."""
        start, end = span
        if start == 0 and (count == 1 or self.options.first == "initial"):
            why = f"initial decision: {ratio:.3f} is above {self.options.threshold:g}"
            return (yield from self.retrieved(Segment(start, end, RETRIEVAL, why)))
        candidates = self.candidates(self.found)
        shown = self.used or (candidates[0].passage if candidates else None)
        case = Case("Retrieve", self.pair.instruction, self.before(start), self.sentence(start, end), shown)
        (retrieve,) = yield from _judged([case])
        if retrieve is None:
            raise _DropError("undecided", f"the critic gave no Retrieve label for characters {start} to {end}")
        segment = Segment(start, end, retrieve.label, "judged", retrieve, None if shown is None else shown.id)
        if segment.token == NO_RETRIEVAL:
            return segment
        if segment.token == RETRIEVAL:
            return (yield from self.retrieved(segment))
        if self.used is None:
            why = "judged to continue, but no passage is in use"
            return (yield from self.retrieved(replace(segment, token=RETRIEVAL, why=why)))
        (support,) = yield from _judged([replace(case, group="IsSup", evidence=self.used)])
        if support is None:
            raise _DropError("undecided", f"the critic gave no IsSup label for characters {start} to {end}")
        return replace(segment, token=CONTINUE, used=self.used.id, support=support)

    def retrieved(self, segment: Segment) -> Generator[list[Request], Sequence[Result], Segment]:
        """Find and judge the candidates of a segment, and choose."""
        query = None
        passages: tuple[Passage, ...] = ()
        if not (self.pair.passages and self.options.gold == "only"):
            query = self.query(self.sentence(segment.start, segment.end))
            passages = self.found if query == self.first_query else (yield from self.search(query))
        candidates = yield from self.judged(segment, self.candidates(passages))
        if not candidates:
            raise _DropError("no passage", f"nothing was found for characters {segment.start} to {segment.end}")
        rng = random.Random(f"{self.options.seed}/choice/{self.pair.id}/{segment.start}")  # noqa: S311 - no secret
        chosen, rule = choose(candidates, self.options.choice, self.options.unsupported, rng)
        if chosen is None:
            raise _DropError("no support", f"{rule}: characters {segment.start} to {segment.end}")
        self.used = candidates[chosen].passage if candidates[chosen].relevant else None
        return replace(segment, query=query, candidates=candidates, chosen=chosen, rule=rule)

    def judged(
        self, segment: Segment, candidates: tuple[Candidate, ...]
    ) -> Generator[list[Request], Sequence[Result], tuple[Candidate, ...]]:
        """Candidates with IsRel, and IsSup for the relevant ones."""
        if not candidates:
            return ()
        base = Case("IsRel", self.pair.instruction, self.before(segment.start))
        relevance = yield from _judged([replace(base, evidence=candidate.passage) for candidate in candidates])
        judged = [replace(candidate, isrel=isrel) for candidate, isrel in zip(candidates, relevance, strict=True)]
        asked = [number for number, candidate in enumerate(judged) if candidate.relevant or self.options.judge_all]
        support = replace(base, group="IsSup", output=self.sentence(segment.start, segment.end))
        answers = yield from _judged([replace(support, evidence=judged[number].passage) for number in asked])
        for number, issup in zip(asked, answers, strict=True):
            judged[number] = replace(judged[number], issup=issup)
        return tuple(judged)

    def candidates(self, found: Sequence[Passage]) -> tuple[Candidate, ...]:
        """Gold passages, if they may join, and what a search found."""
        gold = self.pair.passages if self.options.gold != "off" else ()
        return ranked([Candidate(passage, gold=True) for passage in gold], [Candidate(passage) for passage in found])

    def search(self, query: str) -> Searching:
        """One search."""
        (result,) = yield [Retrieve(query, self.options.passages)]
        if isinstance(result, Retrieved):
            return result.passages[: self.options.passages]
        raise _DropError("search failed", result.reason if isinstance(result, Failed) else "")

    def query(self, text: str) -> str:
        """What to search for: the instruction and `text`."""
        instruction = self.pair.instruction
        if self.options.query == "input":
            instruction = instruction.rpartition(SELFRAG.task_input)[2]
        return f"{instruction} {text.strip()}"

    def sentence(self, start: int, end: int) -> str:
        """A segment as the critic sees it."""
        return self.pair.output[start:end].strip()

    def before(self, start: int) -> str:
        """The output before a segment as the critic sees it."""
        return self.pair.output[:start].strip()


def _judged(cases: Sequence[Case]) -> Judging:
    if not cases:
        return []
    return cast("list[Judgment | None]", list((yield list(cases))))


def _ratio(retrieve: Judgment) -> float:
    yes, no = retrieve.probability(RETRIEVAL), retrieve.probability(NO_RETRIEVAL)
    if yes + no == 0:
        raise _DropError("undecided", "the critic gave neither Retrieval nor No Retrieval for the instruction")
    return yes / (yes + no)
