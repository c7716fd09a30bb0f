"""`Reflection`, all that a judge says about one input: a judgment at each site, what it wrote, and what was wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import mul
from typing import Any

from selfrag.common.untrusted import printable
from selfrag.reflection.inputs import JudgeInput, Site
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role


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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"code": str(self.code), "message": self.message, "site": self.site}


@dataclass(frozen=True, slots=True)
class Citation:
    """A piece of a passage (or of an earlier turn) that a response sentence rests on."""

    site: Site  # where; adjacent sentences of one passage are merged
    # of this citation; None where the model gave no probabilities
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgment at one site."""

    site: Site  # what was judged, in the caller's text
    # None where undefined: left out, unreadable or without probability. Never a number then.
    judgment: Judgment | None
    citations: tuple[
        Citation, ...
    ] = ()  # what it rests on; empty is "no citation" if `judgment` says so
    explanation: str | None = None  # the model's own words, untrusted


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a judge says about one input."""

    state: JudgeInput  # what was looked at
    findings: tuple[
        Finding, ...
    ] = ()  # in the order of the sites, one a site for judges of sentences
    # what was written, for tasks that write (rewrite, clarification, correction); None if undefined
    text: str | None = None
    raw: str = ""  # the model's output as it came
    diagnostics: tuple[Diagnostic, ...] = ()  # what was wrong with it

    @classmethod
    def failed(
        cls, state: JudgeInput, reason: str, code: Code = Code.FAILED
    ) -> Reflection:
        """Return the reflection of a request that was not served: undefined, with the reason."""
        return cls(state, diagnostics=(Diagnostic(code, printable(reason)),))

    @classmethod
    def of(cls, state: JudgeInput, site: Site, judgment: Judgment) -> Reflection:
        """Return the reflection of a judge that says one thing."""
        return cls(state, (Finding(site, judgment),))

    @property
    def judgments(self) -> tuple[Judgment, ...]:
        """Return the judgments that are defined."""
        return tuple(
            finding.judgment
            for finding in self.findings
            if finding.judgment is not None
        )

    @property
    def scored(self) -> tuple[Judgment, ...]:
        """Return the judgments that have a score and are not about what stands before the text under judgment."""
        last = len(self.state.messages) - 1
        begin = self.state.begin
        scored = []
        for finding in self.findings:
            before = finding.site.message == last and finding.site.end <= begin
            if finding.judgment is not None and finding.judgment.defined and not before:
                scored.append(finding.judgment)
        return tuple(scored)

    @property
    def reason(self) -> str | None:
        """Return why nothing is defined; None where something is, or where nobody knows."""
        return (
            self.diagnostics[0].message
            if self.diagnostics and not self.scored
            else None
        )

    def mean(self, site: str, evidence: str | None) -> Judgment | None:
        """Return the mixture of the scored judgments; None without any. Citations count by length of the sentence."""
        judgments = self.scored
        if not judgments:
            return None
        first = judgments[0]
        if len(judgments) == 1:
            return replace(first, site=site, evidence=evidence)
        shares = [1.0] * len(judgments)
        if first.role is Role.CITATION:
            lengths = {
                id(finding.judgment): len(finding.site.text)
                for finding in self.findings
            }
            shares = [max(1.0, float(lengths[id(judgment)])) for judgment in judgments]
        total = math.fsum(shares)
        columns = zip(*[judgment.distribution for judgment in judgments], strict=True)
        mixture = [
            math.fsum(map(mul, probabilities, shares)) / total
            for probabilities in columns
        ]
        coverage = (
            math.fsum(map(mul, [judgment.coverage for judgment in judgments], shares))
            / total
        )
        return Judgment(
            first.labels, site, tuple(mixture), coverage, first.source, evidence
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        judgments = []
        for finding in self.findings:
            spans = [
                {**citation.site.as_dict(), "probability": citation.probability}
                for citation in finding.citations
            ]
            judgment = None if finding.judgment is None else finding.judgment.as_dict()
            judgments.append(
                {**finding.site.as_dict(), "judgment": judgment, "citations": spans}
            )
        notes = [note.as_dict() for note in self.diagnostics]
        return {"judgments": judgments, "text": self.text, "diagnostics": notes}

    def lines(self) -> list[str]:
        """Return what a person wants to know, a line each."""
        lines = []
        for finding in self.findings:
            text = " ".join(finding.site.text.split())
            lines.append(f"{spread(finding.judgment)}: {text}")
        return [*lines, *(f"note: {note.message}" for note in self.diagnostics)]

    @property
    def lowest(self) -> float | None:
        """Score of the worst scored judgment; None without any."""
        return min((judgment.score for judgment in self.scored), default=None)


def spread(judgment: Judgment | None) -> str:
    """Return a distribution for people: `answerable 0.93, unanswerable 0.07`, or `undefined`. Tiny shares left out."""
    if judgment is None:
        return "undefined"
    shares = sorted(
        zip(judgment.distribution, judgment.labels.names, strict=True), reverse=True
    )
    return ", ".join(f"{name} {share:.2f}" for share, name in shares if share >= 0.005)
