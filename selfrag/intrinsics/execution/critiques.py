"""Intrinsics as critiques: which texts IsRel and IsSup judge for an intrinsic, and what their judgments amount to.

Whoever judges the pairs of text and passage (reflection tokens, words in common), the typed result is made here.
`Overlap` and `BM25` judge them by words alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from retrieval.normalisation import split_words
from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.decoding.policy import constraint
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Reflection, Scope, Site, State, Steps
from selfrag.intrinsics.labels import ANSWERABLE, CITED, COMPLIANCE, FAITHFULNESS, RELEVANCE
from selfrag.intrinsics.sentences import cited_spans, last_index, last_query, last_turn, response_sites, source_sites
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import ISREL, ISSUP, LabelSet, group

_FUNCTION_WORDS = frozenset(
    split_words(
        "a an and are as at be been but by can could did do does for from had has have he her his how i if in is it its"
        " may me my no not of on or our she should so some than that the their them then there these they this to was"
        " we were what when where which who whom whose why will with would you your"
    )
)
K1, B = 1.2, 0.75


def content_words(text: str) -> list[str]:
    """Words that are no function words, in lower case, in order; all words where there are no others."""
    words = split_words(text)
    return [word for word in words if word not in _FUNCTION_WORDS] or words


def overlap(text: str, passage: str) -> float:
    """Share of the content words of `text` that `passage` has, from 0 to 1; 0 without any word."""
    wanted, there = content_words(text), set(split_words(passage, singles=True))
    return sum(word in there for word in wanted) / len(wanted) if wanted else 0.0


def shown(passage: Passage) -> str:
    """Title and text."""
    return f"{passage.title}\n{passage.text}"


def bm25(text: str, sentences: Sequence[str], passage: str) -> float:
    """Okapi BM25 (k1 1.2, b 0.75) of a passage among `sentences`, as a share of the most that any passage could get."""
    documents = [content_words(one) for one in sentences]
    mean = sum(map(len, documents)) / len(documents) or 1.0
    found, size = Counter(content_words(passage)), len(content_words(passage))
    score = most = 0.0
    for word in set(content_words(text)):
        df = sum(word in document for document in documents)
        rarity = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        score += rarity * found[word] * (K1 + 1) / (found[word] + K1 * (1 - B + B * size / mean))
        most += rarity * (K1 + 1)
    return score / most if most else 0.0


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


Best: TypeAlias = tuple[Pair, Judgment] | None
Judged: TypeAlias = Sequence[tuple[Pair, Judgment | None]]


class View(ABC):
    """An intrinsic as critiques of pairs."""

    def pairs(self, state: State) -> list[Pair]:
        """What is to be judged: each passage by the question, as a rule. Refuses what critiques cannot judge."""
        question = last_query(state)
        return [
            Pair(ISREL, question.text, passage, index, state.in_passage(Scope.PASSAGE, index))
            for index, passage in enumerate(state.passages)
            if passage.text.strip()
        ]

    @abstractmethod
    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        """The intrinsic's own judgments; a pair that nobody could judge is None and counts for nothing."""


def _about(state: State, site: Site, labels: LabelSet) -> list[Pair]:
    found = [p for p in enumerate(state.passages) if p[1].text.strip()]
    return [Pair(labels, site.text, passage, index, site) for index, passage in found]


def _best(judged: Judged) -> Best:
    """The pair with the highest score."""
    known = [(pair, judgment) for pair, judgment in judged if judgment is not None]
    return max(known, key=lambda one: one[1].score, default=None)


def _finding(site: Site, best: Best, labels: LabelSet, shares: Callable[[Judgment], Sequence[float]]) -> Finding:
    """A critique as a judgment over the labels of an intrinsic, whose distribution `shares` gives."""
    if best is None:
        return Finding(site, None)
    pair, one = best
    distribution = tuple(shares(one))
    return Finding(
        site, replace(one, labels=labels, site=str(site), distribution=distribution, evidence=pair.passage.id)
    )


class _Answerability(View):
    """A question is as answerable as its most relevant passage is relevant."""

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        return (_finding(last_query(state), _best(judged), ANSWERABLE, lambda one: one.distribution),)


class _ContextRelevance(View):
    """IsRel of each passage; nothing is partially relevant."""

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        best = {pair.index: (pair, judgment) for pair, judgment in judged if judgment is not None}
        sites = [state.in_passage(Scope.PASSAGE, index) for index in range(len(state.passages))]
        return tuple(
            _finding(site, best.get(index), RELEVANCE, lambda one: (one.distribution[0], 0.0, one.distribution[1]))
            for index, site in enumerate(sites)
        )


class _Faithfulness(View):
    """IsSup of each sentence by the passage that supports it most."""

    def pairs(self, state: State) -> list[Pair]:
        return [pair for site in response_sites(state, last_index(state)) for pair in _about(state, site, ISSUP)]

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        sites = response_sites(state, last_index(state))
        best = [_best([one for one in judged if one[0].site == site]) for site in sites]
        pairs = zip(sites, best, strict=True)
        return tuple(_finding(site, one, FAITHFULNESS, lambda one: (*one.distribution, 0.0)) for site, one in pairs)


class _Citations(View):
    """IsSup of each sentence by the sentences of the passages that have most words of it."""

    def pairs(self, state: State) -> list[Pair]:
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
            finding = _finding(site, _best(some), CITED, lambda one: (one.score, 1.0 - one.score))
            if finding.judgment is not None and finding.judgment.label == "cited":
                scores = {pair.site: one.score for pair, one in some if one is not None}
                finding = replace(finding, citations=cited_spans(state, scores))
            found.append(finding)
        return tuple(found)


class _Requirement(View):
    """A hard constraint such as `issup=Fully supported` as the requirement; several labels are separated by commas."""

    def pairs(self, state: State) -> list[Pair]:
        labels, _ = self._wanted(state)
        if labels == ISREL:
            return super().pairs(state)
        if state.messages[-1].role != "assistant":
            raise UserError(f"requirement_check: {labels.role} judges a reply; the last turn must be of role assistant")
        return _about(state, last_turn(state), labels)

    def findings(self, state: State, judged: Judged) -> tuple[Finding, ...]:
        _, wanted = self._wanted(state)

        def shares(one: Judgment) -> Sequence[float]:
            met = sum(map(one.probability, wanted))
            return met, 1.0 - met

        return (_finding(last_turn(state), _best(judged), COMPLIANCE, shares),)

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
        """One reflection a state; all pairs of all states share a batch."""
        view = VIEWS[self.intrinsic]
        asked = [(state, view.pairs(state)) for state in states]
        found = iter((yield from self.judged([(state, pair) for state, pairs in asked for pair in pairs])))
        return [self._reflection(view, state, pairs, [next(found) for _ in pairs]) for state, pairs in asked]

    @abstractmethod
    def judged(self, pairs: Sequence[tuple[State, Pair]]) -> Steps[list[Judgment | Diagnostic]]:
        """The judgment of each pair, or why there is none."""

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


def plain(pair: Pair, share: float, source: Source = Source.WORDS, coverage: float = 1.0) -> Judgment:
    """A share as a judgment: it is the probability of the best label, and the rest that of the worst one."""
    labels = pair.labels
    best = max(range(len(labels)), key=labels.values.__getitem__)
    worst = min(range(len(labels)), key=labels.values.__getitem__)
    distribution = tuple(share if at == best else 1.0 - share if at == worst else 0.0 for at in range(len(labels)))
    return Judgment(labels, str(pair.site), distribution, coverage, source, pair.passage.id)


@dataclass(frozen=True)
class Overlap(Critiques):
    """Words in common: of the question for relevance, of a sentence for support."""

    name: ClassVar[str] = "overlap"
    cost: ClassVar[Cost] = Cost.INLINE

    def judged(self, pairs: Sequence[tuple[State, Pair]]) -> Steps[list[Judgment | Diagnostic]]:
        """The judgment of each pair; asks no engine."""
        return [plain(pair, self.share(state, pair)) for state, pair in pairs]
        yield []  # a generator, as every execution

    def share(self, state: State, pair: Pair) -> float:
        """How much of the pair's text its passage has, from 0 to 1."""
        return overlap(pair.text, shown(pair.passage))


@dataclass(frozen=True)
class BM25(Overlap):
    """BM25 where each sentence of the passages given is a document."""

    name: ClassVar[str] = "bm25"

    def share(self, state: State, pair: Pair) -> float:
        """See `bm25`."""
        return bm25(pair.text, [site.text for site in source_sites(state)], shown(pair.passage))
