"""Intrinsics as critiques: which texts IsRel and IsSup judge for an intrinsic, and what their judgments amount to.

Whoever judges the pairs of text and passage (reflection tokens, words in common), the intrinsic's own judgments are
made here. `OverlapJudge` judges the pairs by words alone: by the share of the text's words in the passage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.decoding.policy import constraint
from selfrag.judges.sentences import (
    cited_spans,
    last_index,
    last_query,
    last_turn,
    response_sites,
    source_sites,
)
from selfrag.judges.words import overlap, shown
from selfrag.reflection.findings import Code, Diagnostic, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Site, SiteKind
from selfrag.reflection.intrinsic_labels import (
    ANSWERABLE,
    CITED,
    COMPLIANCE,
    FAITHFULNESS,
    RELEVANCE,
)
from selfrag.reflection.judge import Cost, Judge, usual_scope
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import ISREL, ISSUP, LabelSet, group
from selfrag.reflection.requests import Steps

CANDIDATES = 4
"""Sentences of the passages that are judged for each sentence of a response that is to be cited."""


@dataclass(frozen=True, slots=True)
class CritiquePair:
    """A text and a passage, and the critique that is asked for."""

    labels: LabelSet  # `ISREL`, `ISSUP` or `ISUSE`
    text: str  # the question for `ISREL`, else what was written
    passage: Passage  # one passage, or one sentence of it
    site: Site  # what the judgment is about


class JudgedPair(NamedTuple):
    """A pair, and what was said about it."""

    pair: CritiquePair
    judgment: Judgment | None  # None where nobody could judge it


class CritiqueView:
    """An intrinsic as critiques of pairs. By itself: each passage by the question, one judgment on the question."""

    def __init__(self, labels: LabelSet) -> None:
        """Make the view of an intrinsic whose judgments are over `labels`."""
        self.labels = labels

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        """Return what is to be judged. Refuse what critiques cannot judge."""
        question = last_query(state)
        pairs = []
        for index in state.filled:
            site = state.in_passage(SiteKind.PASSAGE, index)
            pairs.append(
                CritiquePair(ISREL, question.text, state.passages[index], site)
            )
        return pairs

    def findings(
        self, state: JudgeInput, judged: Sequence[JudgedPair]
    ) -> list[Finding]:
        """Return the intrinsic's own judgments; a pair without a judgment counts for nothing."""
        return [self._best(last_query(state), judged)]

    def _best(self, site: Site, judged: Sequence[JudgedPair]) -> Finding:
        """Return the judgment with the highest score, over the labels of the intrinsic."""
        scored = [(pair, judgment) for pair, judgment in judged if judgment is not None]
        if not scored:
            return Finding(site, None)
        pair, judgment = max(scored, key=lambda item: item[1].score)
        return Finding(
            site,
            replace(
                judgment.over(self.labels), site=str(site), evidence=pair.passage.id
            ),
        )

    def _best_of_each(
        self, sites: Sequence[Site], judged: Sequence[JudgedPair]
    ) -> list[Finding]:
        """Return one finding for each site, of the pairs that are about it."""
        by_site: dict[Site, list[JudgedPair]] = {site: [] for site in sites}
        for item in judged:
            by_site[item.pair.site].append(item)
        return [self._best(site, by_site[site]) for site in sites]


def _against_passages(
    state: JudgeInput, site: Site, labels: LabelSet
) -> list[CritiquePair]:
    return [
        CritiquePair(labels, site.text, state.passages[index], site)
        for index in state.filled
    ]


def _sentences(state: JudgeInput) -> tuple[Site, ...]:
    return response_sites(state, last_index(state))


class _ContextRelevance(CritiqueView):
    """IsRel of each passage; nothing is partially relevant."""

    def findings(
        self, state: JudgeInput, judged: Sequence[JudgedPair]
    ) -> list[Finding]:
        sites = [
            state.in_passage(SiteKind.PASSAGE, index)
            for index in range(len(state.passages))
        ]
        return self._best_of_each(sites, judged)


class _Faithfulness(CritiqueView):
    """IsSup of each sentence by the passage that supports it most."""

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        return [
            pair
            for site in _sentences(state)
            for pair in _against_passages(state, site, ISSUP)
        ]

    def findings(
        self, state: JudgeInput, judged: Sequence[JudgedPair]
    ) -> list[Finding]:
        return self._best_of_each(_sentences(state), judged)


class _Citations(CritiqueView):
    """IsSup of each sentence by the sentences of the passages that have most words of it."""

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        sources = source_sites(state)
        pairs = []
        for site in _sentences(state):
            shares = {source: overlap(site.text, source.text) for source in sources}
            for source in sorted(sources, key=shares.__getitem__, reverse=True)[
                :CANDIDATES
            ]:
                passage = state.passages[source.passage or 0]
                pairs.append(
                    CritiquePair(
                        ISSUP, site.text, replace(passage, text=source.text), source
                    )
                )
        return pairs

    def findings(
        self, state: JudgeInput, judged: Sequence[JudgedPair]
    ) -> list[Finding]:
        remaining = iter(judged)
        count = min(CANDIDATES, len(source_sites(state)))
        findings = []
        for site in _sentences(state):
            candidates = list(islice(remaining, count))
            finding = self._best(site, candidates)
            if finding.judgment is not None and finding.judgment.label == "cited":
                scores = {
                    pair.site: judgment.score
                    for pair, judgment in candidates
                    if judgment is not None
                }
                finding = replace(finding, citations=cited_spans(state, scores))
            findings.append(finding)
        return findings


class _Requirement(CritiqueView):
    """A hard constraint such as `issup=Fully supported` as the requirement; several labels are separated by commas."""

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        labels, _ = self._required(state)
        if labels == ISREL:
            return super().pairs(state)
        if state.messages[-1].role != "assistant":
            raise UserError(
                f"requirement_check: {labels.role} judges a reply; the last turn must be of role assistant"
            )
        return _against_passages(state, last_turn(state), labels)

    def findings(
        self, state: JudgeInput, judged: Sequence[JudgedPair]
    ) -> list[Finding]:
        _, names = self._required(state)
        finding = self._best(last_turn(state), judged)
        if finding.judgment is None:
            return [finding]
        best = max(
            (item.judgment for item in judged if item.judgment is not None),
            key=lambda judgment: judgment.score,
        )
        met = sum(map(best.probability, names))
        return [
            replace(
                finding,
                judgment=replace(finding.judgment, distribution=(met, 1.0 - met)),
            )
        ]

    def _required(self, state: JudgeInput) -> tuple[LabelSet, frozenset[str]]:
        """Return the group of the requirement, and its labels that meet it."""
        name, equals, names = state.arguments.get("requirement", "").partition("=")
        if not equals:
            raise UserError(
                "requirement_check: reflection tokens check a constraint such as 'issup=Fully supported';"
                " ask for requirement_check.prompt to check other texts"
            )
        checked = constraint(
            {name.strip(): [label.strip() for label in names.split(",")]}
        )
        ((role, labels),) = checked.items()
        return group(role), labels


VIEWS: Mapping[str, CritiqueView] = MappingProxyType(
    {
        # a question is as answerable as its most relevant passage is relevant
        "answerability": CritiqueView(ANSWERABLE),
        "context_relevance": _ContextRelevance(RELEVANCE),
        "hallucination_detection": _Faithfulness(FAITHFULNESS),
        "citation_generation": _Citations(CITED),
        "requirement_check": _Requirement(COMPLIANCE),
    }
)
"""Name of an intrinsic to its view."""


class CritiqueJudge(Judge):
    """Judges an intrinsic by critiques of pairs: of reflection tokens, of words, or of both."""

    def __init__(self, intrinsic: str) -> None:
        """Judge the intrinsic of this name, one of `VIEWS`."""
        self.view = VIEWS[intrinsic]
        self.labels, self.scope = self.view.labels, usual_scope(self.view.labels)

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; all pairs of all inputs share a batch."""
        pairs = [self.view.pairs(state) for state in inputs]
        batch = []
        for state, of_input in zip(inputs, pairs, strict=True):
            batch += [(state, pair) for pair in of_input]
        results = iter((yield from self.judge_pairs(batch)))
        return [
            self._reflection(state, of_input, results)
            for state, of_input in zip(inputs, pairs, strict=True)
        ]

    @abstractmethod
    def judge_pairs(
        self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]
    ) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair, or why there is none."""

    def _reflection(
        self,
        state: JudgeInput,
        pairs: Sequence[CritiquePair],
        results: Iterator[Judgment | Diagnostic],
    ) -> Reflection:
        """Take the results of the pairs of an input, and make its reflection of them."""
        judged: list[JudgedPair] = []
        notes: list[Diagnostic] = []
        for pair in pairs:
            result: Judgment | Diagnostic | None = next(results)
            if isinstance(result, Diagnostic):
                notes.append(result)
                result = None
            judged.append(JudgedPair(pair, result))
        empty = sorted(set(range(len(state.passages))).difference(state.filled))
        notes += [
            Diagnostic(Code.EMPTY, f"passage {index + 1} is empty", index)
            for index in empty
        ]
        return Reflection(
            state, tuple(self.view.findings(state, judged)), diagnostics=tuple(notes)
        )


def as_judgment(
    pair: CritiquePair,
    share: float,
    source: JudgmentSource = JudgmentSource.WORDS,
    coverage: float = 1.0,
) -> Judgment:
    """Return a share as a judgment: it is the probability of the best label, and the rest that of the worst one."""
    values = pair.labels.values
    distribution = [0.0] * len(values)
    distribution[values.index(min(values))] = 1.0 - share
    distribution[values.index(max(values))] = share
    return Judgment(
        pair.labels,
        str(pair.site),
        tuple(distribution),
        coverage,
        source,
        pair.passage.id,
    )


class OverlapJudge(CritiqueJudge):
    """Words in common: of the question for relevance, of a sentence for support."""

    name = "overlap"
    cost = Cost.INLINE

    def judge_pairs(
        self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]
    ) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair; asks no engine."""
        return [
            as_judgment(pair, overlap(pair.text, shown(pair.passage)))
            for _, pair in pairs
        ]
        yield []  # a generator, as every judge
