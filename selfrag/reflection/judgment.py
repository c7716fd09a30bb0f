"""What judges say: `Judgment`, a distribution over labels, and `Reflection`, all that is said about one input.

Pure values, no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable
from selfrag.reflection.inputs import JudgeInput, Site
from selfrag.reflection.labels import GROUPS, Label, LabelKind, LabelSet, Role

SUM_TOLERANCE = 1e-3
"""By how much the probabilities of a distribution that is read may differ from 1."""
SELF_RAG_LABELS = {labels.role: labels for labels in GROUPS}
"""Label sets that a judgment in a trace does not write out."""


class JudgmentSource(StrEnum):
    """Who judged."""

    TOKEN = "token"  # noqa: S105 - a kind of judge, no secret
    ADAPTER = "adapter"
    JUDGE = "judge"
    HARD = "hard"
    WORDS = "words"  # words in common, without a model
    COMBINED = "combined"  # tokens and words, weighed by what was learned


@dataclass(frozen=True, slots=True)
class Judgment:
    """A critique that was made. One that was never produced is `None` in this project, never a number.

    Attributes:
        labels: the label set; its role says what is judged.
        site: where in the answer, such as `segment 2, passage wm00003`.
        distribution: probability of each label, in label order, summing to 1.
        coverage: probability mass on the label set before normalising; near 0 means no judgment was expected here.
        source: who judged.
        evidence: id of the passage judged against, if any.
    """

    labels: LabelSet
    site: str
    distribution: tuple[float, ...]
    coverage: float
    source: JudgmentSource = JudgmentSource.TOKEN
    evidence: str | None = None

    @classmethod
    def from_logprobs(
        cls,
        labels: LabelSet,
        logprobs: Sequence[float],
        *,
        site: str,
        source: JudgmentSource = JudgmentSource.TOKEN,
        evidence: str | None = None,
    ) -> Judgment:
        """Normalise exact log-probabilities of all labels.

        Args:
            labels: the label set.
            logprobs: natural log-probability of each label, in label order; -inf is allowed for single labels.
            site: where in the answer.
            source: who judged.
            evidence: id of the passage judged against.

        Raises:
            ValueError: a label is missing, a value is NaN or above 0, or no label has any probability.
        """
        if len(logprobs) != len(labels):
            raise ValueError(f"{labels.role}: {len(logprobs)} log-probabilities for {len(labels)} labels")
        top = max(logprobs)
        if top > 1e-3 or any(map(math.isnan, logprobs)):
            raise ValueError(f"{labels.role}: not log-probabilities: {list(logprobs)}")
        if top == -math.inf:
            raise ValueError(f"{labels.role}: no label has any probability")
        raw = [math.exp(value - top) for value in logprobs]
        mass = math.fsum(raw)
        coverage = min(1.0, mass * math.exp(top))
        return cls(labels, site, tuple([value / mass for value in raw]), coverage, source, evidence)

    @property
    def role(self) -> Role:
        """What is judged."""
        return self.labels.role

    @property
    def label(self) -> str:
        """Name of the most probable label (the first of equals)."""
        return self.labels.names[self.distribution.index(max(self.distribution))]

    @property
    def mode(self) -> float:
        """Value of the most probable label (the first of equals)."""
        return self.labels.values[self.distribution.index(max(self.distribution))]

    def probability(self, name: str) -> float:
        """Probability of one label, by name."""
        return self.distribution[self.labels.index(name)]

    @property
    def score(self) -> float:
        """Normalised group score (appendix A.4): the expectation of the label values.

        Labels without a value (`NA`, `unanswerable`) leave the expectation. NaN where they have all the probability;
        ask `defined` first.
        """
        counted, distribution, values = self.labels.counted, self.distribution, self.labels.values
        total = math.fsum([distribution[i] * values[i] for i in counted])
        if len(counted) == len(values):
            return total
        mass = math.fsum([distribution[i] for i in counted])
        return total / mass if mass > 0 else math.nan

    @property
    def defined(self) -> bool:
        """Whether the most probable label has a value; a judgment such as `NA` says that there is nothing to score."""
        return self.labels.labels[self.distribution.index(max(self.distribution))].kind is LabelKind.NORMAL

    def over(self, labels: LabelSet) -> Judgment:
        """Return the judgment over another label set, by the values of the labels.

        Each probability goes to the label of equal value. If some label has no counterpart, the score becomes the
        probability of the best label, and the rest that of the worst one.
        """
        if labels == self.labels:
            return self
        place = {labels.values[i]: i for i in reversed(labels.counted)}
        shares = [0.0] * len(labels)
        if set(self.labels.values) <= place.keys():
            for value, probability in zip(self.labels.values, self.distribution, strict=True):
                shares[place[value]] += probability
        else:
            shares[place[max(place)]] = self.score
            shares[place[min(place)]] = 1.0 - self.score
        return replace(self, labels=labels, distribution=tuple(shares))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "role": str(self.role),
            "distribution": dict(zip(self.labels.names, self.distribution, strict=True)),
            "coverage": self.coverage,
            "source": str(self.source),
            "site": self.site,
            "evidence": self.evidence,
        }


class Code(StrEnum):
    """Kinds of trouble with what a judge said."""

    INVALID = "invalid"  # not the form that was asked for, nothing recovered
    RECOVERED = "recovered"  # not quite that form; what could be read was read
    TRUNCATED = "truncated"  # the output ends in the middle
    OUT_OF_RANGE = "out-of-range"  # a number that names no site
    DUPLICATE = "duplicate"  # a second record for the same site
    UNKNOWN_LABEL = "unknown-label"
    MISSING = "missing"  # a site that the model left out
    NO_LOGPROBS = "no-logprobs"  # a label without probabilities: taken as certain
    LOW_COVERAGE = "low-coverage"  # under half of the probability is on the labels
    UNMATCHED = "unmatched"  # log-probabilities do not fit the text
    EMPTY = "empty"  # an empty passage or an empty output
    FAILED = "failed"  # the request was not served


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing to know about an output."""

    code: Code  # what kind
    message: str  # one line, safe to print
    site: int | None = None  # number of the site it concerns; None for the whole output


@dataclass(frozen=True, slots=True)
class Citation:
    """A piece of a passage (or of an earlier turn) that a response sentence rests on."""

    site: Site  # where; adjacent sentences of one passage are merged
    probability: float | None = None  # of this citation; None where the model gave no probabilities


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgment at one site."""

    site: Site  # what was judged, in the caller's text
    judgment: Judgment | None  # None where undefined: left out, unreadable or without probability. Never a number then.
    citations: tuple[Citation, ...] = ()  # what it rests on; empty is "no citation" if `judgment` says so
    explanation: str | None = None  # the model's own words, untrusted


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a judge says about one input."""

    state: JudgeInput  # what was looked at
    findings: tuple[Finding, ...] = ()  # in the order of the sites, one a site for judges of sentences
    # what was written, for tasks that write (rewrite, clarification, correction); None if undefined
    text: str | None = None
    raw: str = ""  # the model's output as it came
    diagnostics: tuple[Diagnostic, ...] = ()  # what was wrong with it

    @classmethod
    def failed(cls, state: JudgeInput, reason: str, code: Code = Code.FAILED) -> Reflection:
        """Return the reflection of a request that was not served: undefined, with the reason."""
        return cls(state, diagnostics=(Diagnostic(code, printable(reason)),))

    @classmethod
    def of(cls, state: JudgeInput, site: Site, judgment: Judgment) -> Reflection:
        """Return the reflection of a judge that says one thing."""
        return cls(state, (Finding(site, judgment),))

    @property
    def judgments(self) -> tuple[Judgment, ...]:
        """The judgments that are defined."""
        return tuple(finding.judgment for finding in self.findings if finding.judgment is not None)

    @property
    def scored(self) -> tuple[Judgment, ...]:
        """The judgments that have a score and are about the text under judgment, not about what stands before it."""
        last, begin = len(self.state.messages) - 1, self.state.begin
        return tuple(
            finding.judgment
            for finding in self.findings
            if finding.judgment is not None
            and finding.judgment.defined
            and not (finding.site.message == last and finding.site.end <= begin)
        )

    @property
    def reason(self) -> str | None:
        """Why nothing is defined; None where something is, or where nobody knows."""
        return self.diagnostics[0].message if self.diagnostics and not self.scored else None

    def mean(self, site: str, evidence: str | None) -> Judgment | None:
        """Return the mixture of the scored judgments; None without any. Citations count by length of the sentence."""
        judgments = self.scored
        if len(judgments) <= 1:
            return replace(judgments[0], site=site, evidence=evidence) if judgments else None
        first = judgments[0]
        shares = [1.0] * len(judgments)
        if first.role is Role.CITATION:
            lengths = {id(finding.judgment): len(finding.site.text) for finding in self.findings}
            shares = [max(1.0, float(lengths[id(judgment)])) for judgment in judgments]
        total = math.fsum(shares)
        columns = zip(*(judgment.distribution for judgment in judgments), strict=True)
        mixture = tuple(math.fsum(p * s for p, s in zip(column, shares, strict=True)) / total for column in columns)
        coverage = math.fsum(one.coverage * share for one, share in zip(judgments, shares, strict=True)) / total
        return Judgment(first.labels, site, mixture, coverage, first.source, evidence)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        judgments = []
        for finding in self.findings:
            judgment = None if finding.judgment is None else finding.judgment.as_dict()
            spans = [{**citation.site.as_dict(), "probability": citation.probability} for citation in finding.citations]
            judgments.append({**finding.site.as_dict(), "judgment": judgment, "citations": spans})
        notes = [{"code": str(note.code), "message": note.message, "site": note.site} for note in self.diagnostics]
        return {"judgments": judgments, "text": self.text, "diagnostics": notes}

    def lines(self) -> list[str]:
        """Return what a person wants to know, a line each."""
        lines = [f"{spread(finding.judgment)}: {' '.join(finding.site.text.split())}" for finding in self.findings]
        return [*lines, *(f"note: {note.message}" for note in self.diagnostics)]

    @property
    def lowest(self) -> float | None:
        """Score of the worst scored judgment; None without any."""
        return min((judgment.score for judgment in self.scored), default=None)


def spread(judgment: Judgment | None) -> str:
    """Return a distribution for people: `answerable 0.93, unanswerable 0.07`, or `undefined`. Tiny shares left out."""
    if judgment is None:
        return "undefined"
    shares = sorted(zip(judgment.distribution, judgment.labels.names, strict=True), reverse=True)
    return ", ".join(f"{name} {share:.2f}" for share, name in shares if share >= 0.005)


def labels_of(record: Mapping[str, Any]) -> LabelSet:
    """Return the labels that a judgment of a trace is over.

    Raises:
        UserError: they are missing, or the distribution names others or does not sum to 1.
    """
    role, distribution, site = record["role"], record["distribution"], record["site"]
    if "labels" in record:
        labels = LabelSet(role, tuple([Label(*values) for values in record["labels"]]))
    elif role in SELF_RAG_LABELS:
        labels = SELF_RAG_LABELS[role]
    else:
        raise UserError(f"the judgment {site!r:.80} about {role} has no labels")
    if tuple(distribution) != labels.names and sorted(distribution) != sorted(labels.names):
        raise UserError(f"the judgment {site!r:.80} is not over the labels of {role}")
    total = math.fsum(distribution.values())
    if abs(total - 1) > SUM_TOLERANCE:
        raise UserError(f"the probabilities of the judgment {site!r:.80} sum to {total:g}, not 1")
    return labels
