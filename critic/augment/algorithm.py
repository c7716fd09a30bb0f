"""Algorithm 3 of Self-RAG (arXiv 2310.11511, appendix A.3) for one pair, as steps that touch no model.

`augment` asks the judges of a critic and the retriever, and returns an `Augmented` or a `Dropped`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args, get_type_hints

from critic.cases import Case
from critic.pairs import Dropped, Pair
from selfrag.interface import (
    Judgment,
    Passage,
    Retrieve,
    Retrieved,
    SentenceFinder,
    Span,
    Steps,
    UserError,
    check_choice,
    check_float,
    check_int,
    count_of,
)
from selfrag.reflection.requests import failure_of

LONGEST = 100_000
"""Characters that spaCy gets at once; its memory grows with them."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Down- and up-sampling of labels that would dominate or be missing (appendix A.3).

    Attributes:
        keep_unretrieved: share of the rows without any retrieval that is kept.
        irrelevant: share of the pairs of `kinds` that also show an irrelevant passage, where one was judged.
        mode: `add` makes a second row for it (up-sampling), `swap` changes the row.
        kinds: kinds of pair this is done for; the paper names open-domain QA.
    """

    keep_unretrieved: float = 1.0
    irrelevant: float = 0.0
    mode: Literal["add", "swap"] = "add"
    kinds: tuple[str, ...] = ("short_qa",)

    def __post_init__(self) -> None:
        check_float("balance keep_unretrieved", self.keep_unretrieved, 0, 1)
        check_float("balance irrelevant", self.irrelevant, 0, 1)
        check_choice("balance mode", self.mode, ("add", "swap"))


BALANCES: Mapping[str, Balance] = MappingProxyType(
    {
        "none": Balance(),
        "paper": Balance(keep_unretrieved=0.5, irrelevant=0.25),
        "official": Balance(keep_unretrieved=0.4, irrelevant=0.25, mode="swap"),
    }
)
"""By name. The paper gives 50% and no figure for the up-sampling; a quarter is what the published code swaps."""


@dataclass(frozen=True, slots=True)
class AugmentOptions:
    """How pairs become training rows. Equal options, seed included, give equal rows on any number of machines.

    Attributes:
        seed: seed of every random choice. Each pair draws from its own generator, so order and neighbours do not
            matter.
        passages: passages per search, K > 0.
        threshold: retrieve at the start if p(Retrieval) / (p(Retrieval) + p(No Retrieval)) is above this (A.4).
        initial: what the first judgment sees: only the `instruction`, as at inference, or the `output` too (Algorithm
            3). The output suits a critic whose training rows always showed it.
        first: Retrieve token of the first sentence: the `initial` decision, made from the instruction as the generator
            decides, or `judged` like any other sentence (the paper's letter).
        shown: passage that the Retrieve judgment of a sentence sees: the one `used` (until there is one, the best of
            the first search), or always the best of the `initial` search (appendix A.3).
        choice: among relevant passages: `paper` takes the best retrieved of those that support fully or partly;
            `graded` prefers full to partial support (as the published code), then the best retrieved.
        gold: passages that the pair brings: `off` ignores them, `join` puts them before the retrieved candidates,
            `only` searches nothing for pairs that have some.
        query: what to search with: the `input` of the instruction, if it has one, or the `full` instruction. The words
            of a task instruction find passages about themselves.
        sentences: `rules`, or the name of an installed spaCy model.
        shortest: a sentence of fewer characters ("1.", "Yes.") joins its neighbour.
        longest: pairs with more characters in instruction and output are left out and counted.
        balance: down- and up-sampling.
    """

    seed: int = 0
    passages: int = 5
    threshold: float = 0.5
    initial: Literal["instruction", "output"] = "instruction"
    first: Literal["initial", "judged"] = "initial"
    shown: Literal["used", "initial"] = "used"
    choice: Literal["paper", "graded"] = "paper"
    gold: Literal["off", "join", "only"] = "off"
    query: Literal["input", "full"] = "input"
    sentences: str = "rules"
    shortest: int = 12
    longest: int = 20_000
    balance: Balance = BALANCES["paper"]

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):
            if choices := get_args(hints[item.name]):
                check_choice(item.name, getattr(self, item.name), choices)
        check_int("passages", self.passages)
        check_float("threshold", self.threshold, 0, 1)
        if self.threshold == 1:
            raise UserError(
                "threshold=1: no critic is that sure; give a number below 1"
            )
        check_int("shortest", self.shortest, 0)
        check_int("longest", self.longest, 1, LONGEST)


RULES: Mapping[str, AugmentOptions] = MappingProxyType(
    {
        "ours": AugmentOptions(),
        "paper": AugmentOptions(
            passages=10,
            initial="output",
            first="judged",
            shown="initial",
            query="full",
            shortest=0,
        ),
    }
)
"""By name. `paper` is Algorithm 3, appendix A.3 and section 4.3 to the letter; an output of one sentence follows the
initial decision, since there y_t is y. `docs/guides/dgen.md` says why it is not the default."""

RETRIEVAL = "Retrieval"
NO_RETRIEVAL = "No Retrieval"
CONTINUE = "Continue to Use Evidence"
FULLY, PARTIALLY = "Fully supported", "Partially supported"

_INPUT = re.compile(r"\s*^#{2,3} Input:\s*|(?<=[.?!:])#{2,3} Input:\s*", re.MULTILINE)
"""What stands between a task instruction and its input, in the layouts of this project and of the published data."""

JudgeCases: TypeAlias = Callable[[Sequence[Case]], Steps[list[Judgment | None]]]
"""Steps that return a judgment for each case, None where the critic gave no label; `Critic.steps`."""


@dataclass(frozen=True, slots=True)
class PassageCandidate:
    """A passage that a segment could be written from."""

    passage: Passage  # with its retrieval score; None for a gold passage that no search found
    gold: bool = False  # whether the pair brought it
    # None where the critic gave no label, which rules the candidate out
    isrel: Judgment | None = None
    # None where it was not asked for (an irrelevant passage) or gave no label
    issup: Judgment | None = None

    @property
    def relevant(self) -> bool:
        """Return whether it was judged relevant."""
        return self.isrel is not None and self.isrel.label == "Relevant"

    @property
    def irrelevant(self) -> bool:
        """Return whether it was judged irrelevant, which is not the opposite: it may not have been judged."""
        return self.isrel is not None and self.isrel.label == "Irrelevant"

    @property
    def judged(self) -> bool:
        """Return whether every token that would be written for it is known."""
        return self.irrelevant or (self.relevant and self.issup is not None)

    def supports(self, labels: Sequence[str]) -> bool:
        """Return whether it is relevant and supports the segment as one of the labels says."""
        return self.relevant and self.issup is not None and self.issup.label in labels


@dataclass(frozen=True, slots=True)
class AugmentedSegment:
    """A piece of the output and the decision made for it."""

    start: int  # first character in the pair's output
    end: int  # last character, exclusive. A segment begins with the white space before it.
    token: str  # label name of its Retrieve token
    why: str  # one line on why it is this token
    # the judgment behind it; None for an output that the initial decision settles
    retrieve: Judgment | None = None
    evidence: str | None = None  # id of the passage shown for that judgment
    query: str | None = None  # what was searched for
    candidates: tuple[PassageCandidate, ...] = ()  # best first
    # position of the chosen candidate; None without retrieval
    chosen: int | None = None
    rule: str = ""  # why that candidate
    used: str | None = None  # id of the passage that a continued segment continues with
    support: Judgment | None = None  # IsSup of a continued segment against `used`

    @property
    def candidate(self) -> PassageCandidate | None:
        """Return the chosen candidate, if there is one."""
        if self.chosen is None:
            return None
        return self.candidates[self.chosen]


@dataclass(frozen=True, slots=True)
class Augmented:
    """One pair with every decision made for it."""

    pair: Pair  # as read
    retrieve: Judgment  # the initial judgment, from the instruction
    ratio: float  # p(Retrieval) / (p(Retrieval) + p(No Retrieval)) of it
    query: str | None  # the initial search, None if there was none
    passages: tuple[Passage, ...]  # what it brought, with scores
    # in order; together they are the output, character by character
    segments: tuple[AugmentedSegment, ...]
    use: Judgment  # utility of the whole output


def augment(
    pair: Pair, options: AugmentOptions, find: SentenceFinder, judge: JudgeCases
) -> Steps[Augmented | Dropped]:
    """Write reflection tokens into one pair; `find` gives the sentence spans of a text."""
    try:
        return (yield from _Augmentation(pair, options, find, judge).run())
    except _DropError as drop:
        return Dropped(pair.id, drop.reason, drop.detail)


class _DropError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def _undecided(group: str, start: int, end: int) -> _DropError:
    return _DropError(
        "undecided", f"the critic gave no {group} label for characters {start} to {end}"
    )


@dataclass(slots=True)
class _Augmentation:
    """State of one pair: the passage in use, and what the initial search brought."""

    pair: Pair
    options: AugmentOptions
    find: SentenceFinder
    judge: JudgeCases
    used: Passage | None = None
    first_query: str | None = None
    first_passages: tuple[Passage, ...] = ()

    def run(self) -> Steps[Augmented]:
        pair, options = self.pair, self.options
        # 1. Leave out what could not be trained on, before anything is paid for.
        size = len(pair.instruction) + len(pair.output)
        if size > options.longest:
            raise _DropError(
                "too long",
                f"{count_of(size, 'characters')}; the limit is {options.longest}",
            )
        if not _writable(
            pair.id, pair.dataset, pair.kind, pair.instruction, pair.output
        ):
            raise _DropError(
                "not Unicode", "a lone surrogate, which no UTF-8 file can hold"
            )
        # 2. Ask for the initial decision, and for the utility: it depends on the whole output alone.
        shown = ""
        if options.initial == "output":
            shown = pair.output
        cases = [
            Case.of("Retrieve", pair.instruction, output=shown),
            Case.of("IsUse", pair.instruction, output=pair.output),
        ]
        retrieve, use = yield from self.judge(cases)
        if retrieve is None:
            raise _DropError("undecided", "the critic gave no Retrieve label")
        if use is None:
            raise _DropError("undecided", "the critic gave no IsUse label")
        yes, no = retrieve.probability(RETRIEVAL), retrieve.probability(NO_RETRIEVAL)
        if yes + no == 0:
            raise _DropError(
                "undecided",
                "the critic gave neither Retrieval nor No Retrieval for the instruction",
            )
        ratio = yes / (yes + no)
        # 3. Decide segment by segment, or write the output as it is.
        written: list[AugmentedSegment] = []
        if ratio <= options.threshold:
            why = f"initial decision: {ratio:.3f} is not above {options.threshold:g}"
            written.append(AugmentedSegment(0, len(pair.output), NO_RETRIEVAL, why))
        else:
            if self.searching:
                self.first_query = self.query(pair.output)
                self.first_passages = yield from self.search(self.first_query)
            spans = segments(pair.output, self.find(pair.output), options.shortest)
            for span in spans:
                segment = yield from self.segment(span, len(spans), ratio)
                written.append(segment)
        return Augmented(
            pair,
            retrieve,
            ratio,
            self.first_query,
            self.first_passages,
            tuple(written),
            use,
        )

    def segment(self, span: Span, count: int, ratio: float) -> Steps[AugmentedSegment]:
        """Decide one segment of `count`."""
        start, end = span
        if start == 0 and (count == 1 or self.options.first == "initial"):
            why = f"initial decision: {ratio:.3f} is above {self.options.threshold:g}"
            return (
                yield from self.retrieved(AugmentedSegment(start, end, RETRIEVAL, why))
            )
        shown = self.shown()
        (retrieve,) = yield from self.judge([self.case("Retrieve", start, end, shown)])
        if retrieve is None:
            raise _undecided("Retrieve", start, end)
        evidence = None if shown is None else shown.id
        segment = AugmentedSegment(
            start, end, retrieve.label, "judged", retrieve, evidence
        )
        if segment.token == NO_RETRIEVAL:
            return segment
        if segment.token == RETRIEVAL:
            return (yield from self.retrieved(segment))
        if self.used is None:
            why = "judged to continue, but no passage is in use"
            return (
                yield from self.retrieved(replace(segment, token=RETRIEVAL, why=why))
            )
        (support,) = yield from self.judge([self.case("IsSup", start, end, self.used)])
        if support is None:
            raise _undecided("IsSup", start, end)
        return replace(segment, token=CONTINUE, used=self.used.id, support=support)

    def shown(self) -> Passage | None:
        """Return the passage that the Retrieve judgment of a sentence sees."""
        if self.used is not None and self.options.shown == "used":
            return self.used
        candidates = self.candidates(self.first_passages)
        if candidates:
            return candidates[0].passage
        return None

    def retrieved(self, segment: AugmentedSegment) -> Steps[AugmentedSegment]:
        """Find and judge the candidates of a segment, and choose."""
        start, end = segment.start, segment.end
        query: str | None = None
        passages: tuple[Passage, ...] = ()
        if self.searching:
            query = self.query(self.pair.output[start:end])
            passages = (
                self.first_passages
                if query == self.first_query
                else (yield from self.search(query))
            )
        candidates = yield from self.judged(start, end, self.candidates(passages))
        if not candidates:
            raise _DropError(
                "no passage", f"nothing was found for characters {start} to {end}"
            )
        rng = random.Random(f"{self.options.seed}/choice/{self.pair.id}/{start}")  # noqa: S311 - no secret
        chosen, rule = choose(candidates, self.options.choice, rng)
        if chosen is None:
            raise _DropError("no support", f"{rule}: characters {start} to {end}")
        self.used = candidates[chosen].passage if candidates[chosen].relevant else None
        return replace(
            segment, query=query, candidates=candidates, chosen=chosen, rule=rule
        )

    def judged(
        self, start: int, end: int, candidates: tuple[PassageCandidate, ...]
    ) -> Steps[tuple[PassageCandidate, ...]]:
        """Return candidates with IsRel, and IsSup for the relevant ones."""
        judged = list(candidates)
        cases = [
            self.case("IsRel", start, start, candidate.passage)
            for candidate in candidates
        ]
        relevances = yield from self.judge(cases)
        for number, isrel in enumerate(relevances):
            judged[number] = replace(judged[number], isrel=isrel)
        relevant = [
            number for number, candidate in enumerate(judged) if candidate.relevant
        ]
        cases = [
            self.case("IsSup", start, end, judged[number].passage)
            for number in relevant
        ]
        supports = yield from self.judge(cases)
        for number, issup in zip(relevant, supports, strict=True):
            judged[number] = replace(judged[number], issup=issup)
        return tuple(judged)

    def search(self, query: str) -> Steps[tuple[Passage, ...]]:
        (result,) = yield [Retrieve(query, self.options.passages)]
        if isinstance(result, Retrieved):
            return result.passages[: self.options.passages]
        raise _DropError("search failed", failure_of(result))

    @property
    def searching(self) -> bool:
        return not (self.pair.passages and self.options.gold == "only")

    def candidates(self, retrieved: Sequence[Passage]) -> tuple[PassageCandidate, ...]:
        """Return gold passages, if they may join, and what a search brought."""
        gold = self.pair.passages if self.options.gold != "off" else ()
        candidates = [PassageCandidate(passage) for passage in retrieved]
        return ranked(
            [PassageCandidate(passage, gold=True) for passage in gold], candidates
        )

    def case(self, group: str, start: int, end: int, evidence: Passage | None) -> Case:
        """Return a span of the output, after what comes before it, as the critic sees it."""
        output = self.pair.output
        return Case.of(
            group,
            self.pair.instruction,
            output[:start].strip(),
            output[start:end].strip(),
            evidence,
        )

    def query(self, text: str) -> str:
        """Return what to search for: the instruction and `text`."""
        instruction = self.pair.instruction
        if self.options.query == "input":
            parts = [part for part in _INPUT.split(instruction) if part.strip()]
            instruction = parts[-1] if parts else instruction
        return f"{instruction} {text.strip()}"


def _writable(*texts: str) -> bool:
    """Return whether texts can be written as UTF-8: JSON may bring halves of characters, which no file can hold."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def segments(text: str, sentences: Iterable[Span], shortest: int = 0) -> list[Span]:
    """Return spans that follow each other without a gap and cover `text`; a blank text has none.

    White space between two sentences belongs to the second one, what follows the last sentence to the last. So the
    tokens that follow a sentence come right after its last character, and the texts joined are `text`. A sentence of
    fewer characters than `shortest` joins the next one, the last one joins the one before.
    """
    if not text.strip():
        return []
    ends = [
        start + len(text[start:end].rstrip())
        for start, end in sentences
        if text[start:end].strip()
    ]
    inner_ends = [end for end in ends[:-1] if end < len(text)]
    spans: list[Span] = []
    begin = 0
    for end in [*inner_ends, len(text)]:
        if len(text[begin:end].strip()) >= shortest or end == len(text):
            spans.append((begin, end))
            begin = end
    if len(spans) > 1 and len(text[slice(*spans[-1])].strip()) < max(1, shortest):
        (start, _), (_, end) = spans[-2:]
        spans[-2:] = [(start, end)]
    return spans


def ranked(
    gold: Sequence[PassageCandidate], retrieved: Sequence[PassageCandidate]
) -> tuple[PassageCandidate, ...]:
    """Return candidates best first: gold passages, then the retrieved ones by falling score, equal ones in their order.

    A gold passage that was also retrieved counts once, with the id and the score of the retrieved one. Left out are
    blank passages, ones without an id, ones that are not Unicode, and repeated ids and texts.
    """
    ordered = list(retrieved)
    if all(candidate.passage.score is not None for candidate in ordered):
        ordered.sort(key=lambda candidate: -(candidate.passage.score or 0.0))
    by_words = {_words(candidate): candidate for candidate in reversed(ordered)}
    kept: dict[str, PassageCandidate] = {}
    ids: set[str] = set()
    for candidate in (*gold, *ordered):
        words = _words(candidate)
        if candidate.gold and words in by_words:
            candidate = replace(by_words[words], gold=True)
        passage = candidate.passage
        usable = (
            words
            and passage.id.strip()
            and _writable(passage.id, passage.title, passage.text)
        )
        if usable and words not in kept and passage.id not in ids:
            kept[words] = candidate
            ids.add(passage.id)
    return tuple(kept.values())


def _words(candidate: PassageCandidate) -> str:
    return " ".join(candidate.passage.text.split())


def choose(
    candidates: Sequence[PassageCandidate],
    choice: Literal["paper", "graded"],
    rng: random.Random,
) -> tuple[int | None, str]:
    """Return the position of the chosen candidate (None if there is none), and the rule that chose it.

    `choice` is that of `AugmentOptions`. A candidate without a critique neither wins nor is drawn.
    """
    preferred = [(FULLY,), (PARTIALLY,)] if choice == "graded" else [(FULLY, PARTIALLY)]
    for labels in preferred:
        able = [
            number
            for number, candidate in enumerate(candidates)
            if candidate.supports(labels)
        ]
        if able:
            return able[
                0
            ], f"relevant and {' or '.join(labels).lower()}, best of {len(able)}"
    able = [number for number, candidate in enumerate(candidates) if candidate.judged]
    if not able:
        return None, "no passage could be judged"
    return rng.choice(able), f"nothing relevant supports it, drawn from {len(able)}"
