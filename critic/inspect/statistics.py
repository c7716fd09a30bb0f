"""Statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from selfrag.pages.palette import GROUP_OF
from selfrag.reflection.labels import RETRIEVE, LabelSet, Role
from selfrag.training.rows import Evidence, Part, Row, Text, Token


def problems(target: Sequence[Part]) -> list[str]:
    """One line for each kind of problem, in the order in which they appear; empty for a target as the paper's."""
    return list(dict.fromkeys([*_frame(target), *_passages(target), *_tokens(target)]))


def _frame(target: Sequence[Part]) -> Iterator[str]:
    """A Retrieve token begins, one Utility token ends."""
    roles = [role(part) for part in target]
    uses = roles.count(Role.UTILITY)
    if roles[0] is not Role.RETRIEVE:
        yield "does not begin with a Retrieve token"
    if uses != 1:
        yield f"{'no' if not uses else 'more than one'} Utility token"
    elif roles[-1] is not Role.UTILITY:
        yield "the Utility token is not the last"


def _passages(target: Sequence[Part]) -> Iterator[str]:
    """`[Retrieval]`, passage and IsRel token follow each other."""
    for before, part, after in zip([None, *target], target, [*target[1:], None], strict=False):
        retrieval = part == Token("[Retrieval]")
        if retrieval and not isinstance(after, Evidence):
            yield "[Retrieval] without a passage after it"
        if isinstance(part, Evidence) and before != Token("[Retrieval]"):
            yield "a passage without [Retrieval] before it"
        if isinstance(part, Evidence) and (after is None or role(after) is not Role.RELEVANCE):
            yield "a passage without an IsRel token after it"


def _tokens(target: Sequence[Part]) -> Iterator[str]:
    """What needs evidence comes after some, and an irrelevant passage supports nothing."""
    evidence = irrelevant = False
    for part in target:
        evidence |= isinstance(part, Evidence)
        irrelevant = part == Token("[Irrelevant]") or (irrelevant and role(part) is not Role.RETRIEVE)
        if part == Token("[Continue to Use Evidence]") and not evidence:
            yield "[Continue to Use Evidence] before any passage"
        if role(part) is Role.SUPPORT and not evidence:
            yield "an IsSup token without a passage"
        elif role(part) is Role.SUPPORT and irrelevant:
            yield "an IsSup token after an irrelevant passage"


def role(part: Part) -> Role | None:
    """The group of a token; None for text and passages."""
    return GROUP_OF[part.token].role if isinstance(part, Token) else None


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

    def merge(self, other: Tally) -> None:
        """Add another tally's counts."""
        self.rows += other.rows
        self.retrieving += other.retrieving
        for name in ("tokens", "segments", "passages", "words"):
            getattr(self, name).update(getattr(other, name))

    def labels(self, group: LabelSet) -> list[int]:
        """Occurrences of the labels of a group, in their order."""
        return [self.tokens[token] for token in group.tokens]

    def mean(self, name: str) -> float:
        """Mean of `segments` or `passages` a row; 0 without rows."""
        counts: Counter[int] = getattr(self, name)
        return sum(value * count for value, count in counts.items()) / self.rows if self.rows else 0.0


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
        total = Tally()
        for tally in self.sources.values():
            total.merge(tally)
        return total

    def largest(self, most: int) -> list[tuple[str, Tally]]:
        """Sources by falling size; where there are more than `most`, the last one stands for the rest."""
        ordered = sorted(self.sources.items(), key=lambda item: (-item[1].rows, item[0]))
        if len(ordered) <= most:
            return ordered
        rest = Tally()
        for _, tally in ordered[most - 1 :]:
            rest.merge(tally)
        return [*ordered[: most - 1], (f"{len(ordered) - most + 1} more sources", rest)]
