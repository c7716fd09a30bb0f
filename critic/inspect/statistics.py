"""Statistics of training rows by source (the paper's Table 3 and more), and what is wrong with the form of a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from selfrag.pages.palette import GROUP_OF
from selfrag.reflection.labels import RETRIEVE, LabelSet, Role
from selfrag.training.rows import Evidence, Part, Row, Text, Token

WORDS = (0, 1, 6, 11, 21, 51, 101, 201, 501)
"""Lower edges of the classes of lengths, in words of written text."""

_EXAMPLES = 5


@dataclass(slots=True)
class Tally:
    """Counts over the rows of one source, or of all.

    Attributes:
        rows: how many.
        retrieving: rows in which `[Retrieval]` occurs at least once (Table 3).
        tokens: occurrences of each reflection token.
        segments: rows by number of segments, which are as many as there are Retrieve tokens.
        passages: rows by number of passages.
        words: rows by class of length, named by the lower edge; passages do not count.
    """

    rows: int = 0
    retrieving: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    segments: Counter[int] = field(default_factory=Counter)
    passages: Counter[int] = field(default_factory=Counter)
    words: Counter[int] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        """Count one row."""
        tokens = [part.token for part in row.target if isinstance(part, Token)]
        words = sum(len(part.text.split()) for part in row.target if isinstance(part, Text))
        self.rows += 1
        self.retrieving += RETRIEVE.tokens[0] in tokens
        self.tokens.update(tokens)
        self.segments[sum(GROUP_OF[token].role is Role.RETRIEVE for token in tokens)] += 1
        self.passages[sum(isinstance(part, Evidence) for part in row.target)] += 1
        self.words[max(edge for edge in WORDS if edge <= words)] += 1

    def labels(self, group: LabelSet) -> list[int]:
        """Occurrences of the labels of a group, in their order."""
        return [self.tokens[token] for token in group.tokens]


def together(tallies: Sequence[Tally]) -> Tally:
    """The sum of tallies."""
    total = Tally(sum(tally.rows for tally in tallies), sum(tally.retrieving for tally in tallies))
    for name in ("tokens", "segments", "passages", "words"):
        for tally in tallies:
            getattr(total, name).update(getattr(tally, name))
    return total


@dataclass(slots=True)
class Statistics:
    """Counts of a whole data set.

    Attributes:
        sources: a tally for each source, in the order in which they appear.
        problems: rows with each problem of form.
        examples: ids of the first rows with it.
    """

    sources: dict[str, Tally] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Count one row."""
        self.sources.setdefault(row.source, Tally()).add(row)
        for problem in problems(row.target):
            self.problems[problem] += 1
            if self.problems[problem] <= _EXAMPLES:
                self.examples.setdefault(problem, []).append(row.id)

    @property
    def total(self) -> Tally:
        """Counts over all sources."""
        return together(list(self.sources.values()))

    def largest(self, most: int) -> list[tuple[str, Tally]]:
        """Sources by falling size; where there are more than `most`, the last one stands for the rest."""
        ordered = sorted(self.sources.items(), key=lambda item: (-item[1].rows, item[0]))
        if len(ordered) <= most:
            return ordered
        rest = [tally for _, tally in ordered[most - 1 :]]
        return [*ordered[: most - 1], (f"{len(rest)} more sources", together(rest))]


def problems(target: Sequence[Part]) -> list[str]:
    """What differs from the form of a target (paper, Table 4), a line for each kind; empty where nothing does."""
    return list(dict.fromkeys(_problems(target)))


def _problems(target: Sequence[Part]) -> Iterator[str]:
    roles = [GROUP_OF[part.token].role if isinstance(part, Token) else None for part in target]
    uses = roles.count(Role.UTILITY)
    if roles[0] is not Role.RETRIEVE:
        yield "does not begin with a Retrieve token"
    if uses != 1:
        yield f"{'no' if not uses else 'more than one'} Utility token"
    elif roles[-1] is not Role.UTILITY:
        yield "the Utility token is not the last"
    retrieval = Token("[Retrieval]")
    for number, part in enumerate(target):
        after = number + 1
        if part == retrieval and not (after < len(target) and isinstance(target[after], Evidence)):
            yield "[Retrieval] without a passage after it"
        if isinstance(part, Evidence) and (number == 0 or target[number - 1] != retrieval):
            yield "a passage without [Retrieval] before it"
        if isinstance(part, Evidence) and (after == len(target) or roles[after] is not Role.RELEVANCE):
            yield "a passage without an IsRel token after it"
    evidence = irrelevant = False
    for part, role in zip(target, roles, strict=True):
        evidence |= isinstance(part, Evidence)
        irrelevant = part == Token("[Irrelevant]") or (irrelevant and role is not Role.RETRIEVE)
        if part == Token("[Continue to Use Evidence]") and not evidence:
            yield "[Continue to Use Evidence] before any passage"
        if role is Role.SUPPORT and not evidence:
            yield "an IsSup token without a passage"
        elif role is Role.SUPPORT and irrelevant:
            yield "an IsSup token after an irrelevant passage"
