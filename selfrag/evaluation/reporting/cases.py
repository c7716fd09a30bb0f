"""`Case`: an item with what every system made of it, for a page to show. Values; reads and shows nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retrieval.passage import Passage
from selfrag.decoding.trace import Trace
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import Part, is_count, ratio


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one system made of an item.

    Attributes:
        system: its name.
        text: the answer.
        error: why there is none; None if there is one.
        segments: text and id of the cited passage, of each piece.
        read: ids of the passages that the model was shown.
        usage: counts by name.
        scores: metric to part, the headline first; None where a metric says nothing.
        trace: everything that was considered; None if the run kept none.
        damage: why a trace that is there cannot be read.
    """

    system: str
    text: str
    error: str | None
    segments: tuple[tuple[str, str | None], ...]
    read: tuple[str, ...]
    usage: Mapping[str, int]
    scores: Mapping[str, Part | None]
    trace: Trace | None
    damage: str | None = None

    @property
    def share(self) -> float | None:
        """The headline figure of this item alone; None where it says nothing, or says how much and not how well."""
        head, part = next(iter(self.scores.items()), ("", None))
        return None if is_count(head) else ratio([part])


@dataclass(frozen=True, slots=True)
class Case:
    """An item and its outcomes.

    Attributes:
        id: of the item.
        item: question, gold and passages; None if the data file is not at hand.
        outcomes: of every system, in the order of the runs.
    """

    id: str
    item: Item | None
    outcomes: tuple[Outcome, ...]

    @property
    def question(self) -> str | None:
        """As asked; None if neither the data file nor a trace is at hand."""
        if self.item is not None:
            return self.item.instruction
        return next((one.trace.question for one in self.outcomes if one.trace is not None), None)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Of the item and of all traces, each id once."""
        found = {passage.id: passage for passage in (self.item.passages if self.item is not None else ())}
        for outcome in self.outcomes:
            for decision in outcome.trace.decisions if outcome.trace is not None else ():
                for passage in decision.passages:
                    found.setdefault(passage.id, passage)
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The cases of one file.

    Attributes:
        name: of the file.
        cases: in the order of the file.
        items: how many the runs have.
        note: why there is no question or gold answer; None if there is.
    """

    name: str
    cases: tuple[Case, ...]
    items: int
    note: str | None = None
