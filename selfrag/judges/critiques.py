"""Intrinsics as critiques: which texts IsRel and IsSup judge for an intrinsic, and what their judgments amount to.

Whoever judges the pairs of text and passage (reflection tokens, words in common), the intrinsic's own judgments are
made here. `OverlapJudge` and `BM25Judge` judge the pairs by words alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.decoding.policy import constraint
from selfrag.judges.sentences import cited_spans, last_index, last_query, last_turn, response_sites, source_sites
from selfrag.judges.words import bm25, overlap, shown
from selfrag.reflection.findings import Code, Diagnostic, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Site, SiteKind
from selfrag.reflection.intrinsic_labels import ANSWERABLE, CITED, COMPLIANCE, FAITHFULNESS, RELEVANCE
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


JudgedPairs: TypeAlias = Sequence[tuple[CritiquePair, Judgment | None]]


class CritiqueView:
    """An intrinsic as critiques of pairs. By itself: each passage by the question."""

    def __init__(self, labels: LabelSet) -> None:
        """Make the view of an intrinsic whose judgments are over `labels`."""
        self.labels = labels

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        """Return what is to be judged. Refuse what critiques cannot judge."""
        question = last_query(state)
        return [
            CritiquePair(ISREL, question.text, passage, state.in_passage(SiteKind.PASSAGE, index))
            for index, passage in enumerate(state.passages)
            if passage.text.strip()
        ]

    def findings(self, state: JudgeInput, judged: JudgedPairs) -> list[Finding]:
        """Return the intrinsic's own judgments; a pair that nobody could judge is None and counts for nothing."""
        return [self._best(last_query(state), judged)]

    def _best(self, site: Site, judged: JudgedPairs) -> Finding:
        """Return the judgment with the highest score, over the labels of the intrinsic."""
        known = [(judgment, pair) for pair, judgment in judged if judgment is not None]
        if not known:
            return Finding(site, None)
        judgment, pair = max(known, key=lambda item: item[0].score)
        return Finding(site, replace(judgment.over(self.labels), site=str(site), evidence=pair.passage.id))


def _about(state: JudgeInput, site: Site, labels: LabelSet) -> list[CritiquePair]:
    return [CritiquePair(labels, site.text, passage, site) for passage in state.passages if passage.text.strip()]


class _ContextRelevance(CritiqueView):
    """IsRel of each passage; nothing is partially relevant."""

    def findings(self, state: JudgeInput, judged: JudgedPairs) -> list[Finding]:
        sites = [state.in_passage(SiteKind.PASSAGE, index) for index in range(len(state.passages))]
        return [self._best(site, [item for item in judged if item[0].site == site]) for site in sites]


class _Faithfulness(CritiqueView):
    """IsSup of each sentence by the passage that supports it most."""

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        return [pair for site in response_sites(state, last_index(state)) for pair in _about(state, site, ISSUP)]

    def findings(self, state: JudgeInput, judged: JudgedPairs) -> list[Finding]:
        sites = response_sites(state, last_index(state))
        return [self._best(site, [item for item in judged if item[0].site == site]) for site in sites]


class _Citations(CritiqueView):
    """IsSup of each sentence by the sentences of the passages that have most words of it."""

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        sources = source_sites(state)
        pairs = []
        for site in response_sites(state, last_index(state)):
            shares = {source: overlap(site.text, source.text) for source in sources}
            for source in sorted(sources, key=shares.__getitem__, reverse=True)[:CANDIDATES]:
                passage = state.passages[source.passage or 0]
                pairs.append(CritiquePair(ISSUP, site.text, replace(passage, text=source.text), source))
        return pairs

    def findings(self, state: JudgeInput, judged: JudgedPairs) -> list[Finding]:
        findings = []
        rest = iter(judged)
        count = min(CANDIDATES, len(source_sites(state)))
        for site in response_sites(state, last_index(state)):
            candidates = list(islice(rest, count))
            finding = self._best(site, candidates)
            if finding.judgment is not None and finding.judgment.label == "cited":
                scores = {pair.site: judgment.score for pair, judgment in candidates if judgment is not None}
                finding = replace(finding, citations=cited_spans(state, scores))
            findings.append(finding)
        return findings


class _Requirement(CritiqueView):
    """A hard constraint such as `issup=Fully supported` as the requirement; several labels are separated by commas."""

    def pairs(self, state: JudgeInput) -> list[CritiquePair]:
        labels, _ = self._wanted(state)
        if labels == ISREL:
            return super().pairs(state)
        if state.messages[-1].role != "assistant":
            raise UserError(f"requirement_check: {labels.role} judges a reply; the last turn must be of role assistant")
        return _about(state, last_turn(state), labels)

    def findings(self, state: JudgeInput, judged: JudgedPairs) -> list[Finding]:
        _, names = self._wanted(state)
        finding = self._best(last_turn(state), judged)
        if finding.judgment is None:
            return [finding]
        best = max((one for _, one in judged if one is not None), key=lambda judgment: judgment.score)
        met = sum(map(best.probability, names))
        return [replace(finding, judgment=replace(finding.judgment, distribution=(met, 1.0 - met)))]

    def _wanted(self, state: JudgeInput) -> tuple[LabelSet, frozenset[str]]:
        name, equals, names = state.arguments.get("requirement", "").partition("=")
        if not equals:
            raise UserError(
                "requirement_check: reflection tokens check a constraint such as 'issup=Fully supported';"
                " ask for requirement_check.prompt to check other texts"
            )
        (role, wanted), *_ = constraint({name.strip(): [label.strip() for label in names.split(",")]}).items()
        return group(role), wanted


VIEWS: Mapping[str, CritiqueView] = MappingProxyType(
    {
        "answerability": CritiqueView(
            ANSWERABLE
        ),  # a question is as answerable as its most relevant passage is relevant
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
        flat = [(state, pair) for state, own in zip(inputs, pairs, strict=True) for pair in own]
        judgments = iter((yield from self.judge_pairs(flat)))
        return [
            self._reflection(state, own, list(islice(judgments, len(own))))
            for state, own in zip(inputs, pairs, strict=True)
        ]

    @abstractmethod
    def judge_pairs(self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair, or why there is none."""

    def _reflection(
        self, state: JudgeInput, pairs: Sequence[CritiquePair], results: Sequence[Judgment | Diagnostic]
    ) -> Reflection:
        judged = [
            (pair, result if isinstance(result, Judgment) else None)
            for pair, result in zip(pairs, results, strict=True)
        ]
        notes = [result for result in results if isinstance(result, Diagnostic)]
        notes += [
            Diagnostic(Code.EMPTY, f"passage {index + 1} is empty", index)
            for index, passage in enumerate(state.passages)
            if not passage.text.strip()
        ]
        return Reflection(state, tuple(self.view.findings(state, judged)), diagnostics=tuple(notes))


def as_judgment(
    pair: CritiquePair, share: float, source: JudgmentSource = JudgmentSource.WORDS, coverage: float = 1.0
) -> Judgment:
    """Return a share as a judgment: it is the probability of the best label, and the rest that of the worst one."""
    labels = pair.labels
    best = max(range(len(labels)), key=labels.values.__getitem__)
    worst = min(range(len(labels)), key=labels.values.__getitem__)
    distribution = tuple(share if at == best else 1.0 - share if at == worst else 0.0 for at in range(len(labels)))
    return Judgment(labels, str(pair.site), distribution, coverage, source, pair.passage.id)


class OverlapJudge(CritiqueJudge):
    """Words in common: of the question for relevance, of a sentence for support."""

    name = "overlap"
    cost = Cost.INLINE

    def judge_pairs(self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair; asks no engine."""
        return [as_judgment(pair, self.share(state, pair)) for state, pair in pairs]
        yield []  # a generator, as every judge

    def share(self, state: JudgeInput, pair: CritiquePair) -> float:
        """Return how much of the pair's text its passage has, from 0 to 1."""
        return overlap(pair.text, shown(pair.passage))


class BM25Judge(OverlapJudge):
    """BM25 where each sentence of the passages given is a document."""

    name = "bm25"

    def share(self, state: JudgeInput, pair: CritiquePair) -> float:
        """See `bm25`."""
        return bm25(pair.text, [site.text for site in source_sites(state)], shown(pair.passage))
