"""What came out of one pair: `Augmented` with its segments and candidates, or `Dropped`. Knows no file format."""

from __future__ import annotations

from dataclasses import dataclass

from critic.pairs import Pair
from retrieval.passage import Passage
from selfrag.reflection.judgment import Judgment

RETRIEVAL, NO_RETRIEVAL, CONTINUE = "Retrieval", "No Retrieval", "Continue to Use Evidence"
RELEVANT, IRRELEVANT = "Relevant", "Irrelevant"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that a segment could be written from.

    Attributes:
        passage: with its retrieval score; None for a gold passage that no search found.
        gold: whether the pair brought it.
        isrel: None where the critic gave no label, which rules the candidate out.
        issup: None where it was not asked for (an irrelevant passage) or gave no label.
    """

    passage: Passage
    gold: bool = False
    isrel: Judgment | None = None
    issup: Judgment | None = None

    @property
    def relevant(self) -> bool:
        """Whether it was judged relevant."""
        return self.isrel is not None and self.isrel.label == RELEVANT

    @property
    def irrelevant(self) -> bool:
        """Whether it was judged irrelevant, which is not the opposite: it may not have been judged."""
        return self.isrel is not None and self.isrel.label == IRRELEVANT

    @property
    def judged(self) -> bool:
        """Whether every token that would be written for it is known."""
        return self.irrelevant or (self.relevant and self.issup is not None)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the output and the decision made for it.

    Attributes:
        start: first character in the pair's output.
        end: last character, exclusive. A segment begins with the white space before it.
        token: label name of its Retrieve token.
        why: one line on why it is this token.
        retrieve: the judgment behind it; None for an output that the initial decision settles.
        evidence: id of the passage shown for that judgment.
        query: what was searched for.
        candidates: best first.
        chosen: position of the chosen candidate; None without retrieval.
        rule: why that candidate.
        used: the passage a continued segment continues with.
        support: IsSup of a continued segment against `used`.
    """

    start: int
    end: int
    token: str
    why: str
    retrieve: Judgment | None = None
    evidence: str | None = None
    query: str | None = None
    candidates: tuple[Candidate, ...] = ()
    chosen: int | None = None
    rule: str = ""
    used: str | None = None
    support: Judgment | None = None

    @property
    def candidate(self) -> Candidate | None:
        """The chosen candidate."""
        return None if self.chosen is None else self.candidates[self.chosen]

    @property
    def continues(self) -> bool:
        """Whether it goes on with the passage of an earlier segment."""
        return self.token == CONTINUE

    @property
    def others_irrelevant(self) -> list[int]:
        """Positions of irrelevant candidates that were not chosen; none where an irrelevant one was."""
        if self.candidate is None or self.candidate.irrelevant:
            return []
        return [number for number, candidate in enumerate(self.candidates) if candidate.irrelevant]


@dataclass(frozen=True, slots=True)
class Augmented:
    """One pair with every decision made for it.

    Attributes:
        pair: as read.
        retrieve: the initial judgment, from the instruction.
        ratio: p(Retrieval) / (p(Retrieval) + p(No Retrieval)) of it.
        query: the initial search, None if there was none.
        found: ids and scores of what it found.
        segments: in order; together they are the output, character by character.
        use: utility of the whole output.
    """

    pair: Pair
    retrieve: Judgment
    ratio: float
    query: str | None
    found: tuple[Passage, ...]
    segments: tuple[Segment, ...]
    use: Judgment

    @property
    def retrieves(self) -> bool:
        """Whether any segment has a passage of its own."""
        return any(segment.chosen is not None for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A pair that gives no row.

    Attributes:
        id: of the pair, or the place of a row that is none.
        reason: from a small set, so that it can be counted.
        detail: one line.
    """

    id: str
    reason: str
    detail: str = ""


def writable(*texts: str) -> bool:
    """Whether texts can be written as UTF-8: JSON may bring halves of characters, which no file can hold."""
    return all(text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text) for text in texts)
