"""Intrinsics as critiques: which texts IsRel and IsSup judge for an intrinsic, and what their judgments amount to.

Whoever judges the pairs of text and passage (reflection tokens, words in common), the typed result is made here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from retrieval.passage import Passage
from selfrag.decoding.policy import constraint
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Reflection, Scope, Site, State, Steps
from selfrag.intrinsics.labels import ANSWERABLE, CITED, COMPLIANCE, FAITHFULNESS, RELEVANCE
from selfrag.intrinsics.sentences import cited_spans, last_index, last_query, last_turn, response_sites, source_sites
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, LabelSet, group

CANDIDATES = 4
"""Sentences of the passages that are judged for each sentence of a response that is to be cited."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and a passage, and the critique that is asked for."""

    labels: LabelSet  # `ISREL`, `ISSUP` or `ISUSE`
    text: str  # the question for `ISREL`, else what was written
    passage: Passage  # one passage, or one sentence of it
    index: int  # of the passage in `State.passages`
    site: Site  # what the judgment is about


Judged: TypeAlias = Sequence[tuple[Pair, Judgment | None]]
Overlap: TypeAlias = Callable[[str, str], float]
"""How much of the first text is in the second one, from 0 to 1."""


class View(ABC):
    """An intrinsic as critiques of pairs."""

    @abstractmethod
    def pairs(self, state: State, overlap: Overlap) -> list[Pair]:
        """What is to be judged; `overlap` chooses candidates where there are too many.

        Raises:
            UserError: the intrinsic cannot be judged by critiques for this state.
        """

    @abstractmethod
    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        """The intrinsic's own judgments; a pair that nobody could judge is None and counts for nothing."""


def _about_passages(state: State) -> list[Pair]:
    question = last_query(state)
    return [
        Pair(ISREL, question.text, passage, index, state.in_passage(Scope.PASSAGE, index))
        for index, passage in enumerate(state.passages)
        if passage.text.strip()
    ]


def _about(state: State, site: Site, labels: LabelSet) -> list[Pair]:
    found = [p for p in enumerate(state.passages) if p[1].text.strip()]
    return [Pair(labels, site.text, passage, index, site) for index, passage in found]


def _best(judged: Judged) -> tuple[Pair, Judgment] | None:
    """The pair with the highest score."""
    known = [(pair, judgment) for pair, judgment in judged if judgment is not None]
    return max(known, key=lambda one: one[1].score, default=None)


def _relabelled(judgment: Judgment, labels: LabelSet, site: Site, shares: Sequence[float], evidence: str) -> Judgment:
    return replace(judgment, labels=labels, site=str(site), distribution=tuple(shares), evidence=evidence)


class _Answerability(View):
    """A question is as answerable as its most relevant passage is relevant."""

    def pairs(self, state: State, overlap: Overlap) -> list[Pair]:
        return _about_passages(state)

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        site, best = last_query(state), _best(judged)
        if best is None:
            return (Finding(site, None),)
        pair, judgment = best
        return (Finding(site, _relabelled(judgment, ANSWERABLE, site, judgment.distribution, pair.passage.id)),)


class _ContextRelevance(View):
    """IsRel of each passage; nothing is partially relevant."""

    def pairs(self, state: State, overlap: Overlap) -> list[Pair]:
        return _about_passages(state)

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        by_index = {pair.index: judgment for pair, judgment in judged}
        found = []
        for index, passage in enumerate(state.passages):
            site, judgment = state.in_passage(Scope.PASSAGE, index), by_index.get(index)
            if judgment is not None:
                yes, no = judgment.distribution
                judgment = _relabelled(judgment, RELEVANCE, site, (yes, 0.0, no), passage.id)
            found.append(Finding(site, judgment))
        return tuple(found)


class _Faithfulness(View):
    """IsSup of each sentence by the passage that supports it most."""

    def pairs(self, state: State, overlap: Overlap) -> list[Pair]:
        return [pair for site in response_sites(state, last_index(state)) for pair in _about(state, site, ISSUP)]

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        found = []
        for site in response_sites(state, last_index(state)):
            best = _best([one for one in judged if one[0].site == site])
            shares = () if best is None else (*best[1].distribution, 0.0)
            judgment = best and _relabelled(best[1], FAITHFULNESS, site, shares, best[0].passage.id)
            found.append(Finding(site, judgment))
        return tuple(found)


class _Citations(View):
    """IsSup of each sentence by the sentences of the passages that have most words of it."""

    def pairs(self, state: State, overlap: Overlap) -> list[Pair]:
        sources = source_sites(state)
        found = []
        for site in response_sites(state, last_index(state)):
            ranked = sorted(sources, key=lambda source, text=site.text: -overlap(text, source.text))  # type: ignore[misc]
            for source in ranked[:CANDIDATES]:
                index = source.passage or 0
                found.append(Pair(ISSUP, site.text, replace(state.passages[index], text=source.text), index, source))
        return found

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        found = []
        rest = iter(judged)
        count = min(CANDIDATES, len(source_sites(state)))
        for site in response_sites(state, last_index(state)):
            some = list(islice(rest, count))
            best = _best(some)
            if best is None:
                found.append(Finding(site, None))
                continue
            top = best[1].score
            judgment = _relabelled(best[1], CITED, site, (top, 1.0 - top), best[0].passage.id)
            scores = {pair.site: one.score for pair, one in some if one is not None}
            spans = cited_spans(state, scores) if judgment.label == "cited" else ()
            found.append(Finding(site, judgment, spans))
        return tuple(found)


class _Requirement(View):
    """A hard constraint such as `issup=Fully supported` as the requirement; several labels are separated by commas."""

    def pairs(self, state: State, overlap: Overlap) -> list[Pair]:
        labels, _ = self._wanted(state)
        if labels == ISREL:
            return _about_passages(state)
        if state.messages[-1].role != "assistant":
            raise UserError(f"requirement_check: {labels.role} judges a reply; the last turn must be of role assistant")
        return _about(state, last_turn(state), labels)

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        _, wanted = self._wanted(state)
        site, best = last_turn(state), _best(judged)
        if best is None:
            return (Finding(site, None),)
        met = sum(best[1].probability(name) for name in wanted)
        return (Finding(site, _relabelled(best[1], COMPLIANCE, site, (met, 1.0 - met), best[0].passage.id)),)

    def _wanted(self, state: State) -> tuple[LabelSet, frozenset[str]]:
        name, equals, names = state.arguments.get("requirement", "").partition("=")
        if not equals:
            raise UserError(
                "requirement_check: reflection tokens check a constraint such as 'issup=Fully supported';"
                " ask for requirement_check.prompt to check other texts"
            )
        (role, wanted), *_ = constraint({name.strip(): [one.strip() for one in names.split(",")]}).items()
        return group(role), wanted


VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "answerability": _Answerability(),
        "context_relevance": _ContextRelevance(),
        "hallucination_detection": _Faithfulness(),
        "citation_generation": _Citations(),
        "requirement_check": _Requirement(),
    }
)
"""Name of an intrinsic to its view."""


@dataclass(frozen=True)
class Critiques(ABC):
    """An `Execution` that judges pairs: of reflection tokens, of words, or of both."""

    intrinsic: str  # a name of `VIEWS`
    name: ClassVar[str]
    cost: ClassVar[Cost]

    def steps(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state; all pairs of all states share a batch.

        Raises:
            UserError: the intrinsic cannot be judged in this way for a state.
        """
        view = VIEWS[self.intrinsic]
        asked = [(state, view.pairs(state, self.overlap)) for state in states]
        found = iter((yield from self.judged([(state, pair) for state, pairs in asked for pair in pairs])))
        return [self._reflection(view, state, pairs, [next(found) for _ in pairs]) for state, pairs in asked]

    @abstractmethod
    def judged(self, pairs: Sequence[tuple[State, Pair]]) -> Steps[list[Judgment | Diagnostic]]:
        """The judgment of each pair, or why there is none."""

    @abstractmethod
    def overlap(self, text: str, passage: str) -> float:
        """See `Overlap`."""

    def _reflection(
        self, view: View, state: State, pairs: Sequence[Pair], found: Sequence[Judgment | Diagnostic]
    ) -> Reflection:
        judged = [(p, one if isinstance(one, Judgment) else None) for p, one in zip(pairs, found, strict=True)]
        notes = [one for one in found if isinstance(one, Diagnostic)]
        notes += [
            Diagnostic(Code.EMPTY, f"passage {index + 1} is empty", index)
            for index, passage in enumerate(state.passages)
            if not passage.text.strip()
        ]
        return Reflection(state, view.findings(state, judged), diagnostics=tuple(notes))
