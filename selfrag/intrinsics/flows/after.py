"""The stages after the writing: keep what is certain, keep what is faithful, cite. Frozen values; sans-IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from retrieval.checks import choice
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.batcher import Service
from selfrag.intrinsics.contract import Finding, Reflection, Reflector, State
from selfrag.intrinsics.flows.progress import ABSTENTION, Progress, Run, Staging, first_score, need
from selfrag.intrinsics.flows.writers import abstention
from selfrag.intrinsics.reflectors.critic import services
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role


@dataclass(frozen=True, slots=True)
class CertaintyFilter:
    """Keeps the answers that the model is certain of, the most certain first; the fixed text where there is none.

    Attributes:
        reflector: judges certainty.
        threshold: least certainty, on the paper's scale from 0.05 to 0.95 (granite-io's 0.75 is 0.85 here).
        by: `decile`: the most probable one, which is what was calibrated; or the `expectation`.
        text: the fixed text.
    """

    reflector: Reflector
    threshold: float = 0.85
    by: Literal["decile", "expectation"] = "decile"
    text: str = ABSTENTION

    def __post_init__(self) -> None:
        need(self.reflector, Role.CERTAINTY, "CertaintyFilter")
        choice("by", self.by, ("decile", "expectation"))

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Keep, order, or end; an undefined judgment keeps nothing."""
        states = [progress.state(answer.text) for answer in progress.answers]
        found = [first_score(one) for one in (yield from run.reflect(self.reflector, states))]
        sure = {i: self._certainty(judgment) for i, judgment in enumerate(found) if judgment is not None}
        kept = sorted((i for i, value in sure.items() if value >= self.threshold - 1e-9), key=lambda i: -sure[i])
        best = f", best {max(sure.values()):.2f}" if sure else ""
        outcome = f"{len(kept)} of {len(found)} at least {self.threshold:g}{best}"
        judgments = [judgment for judgment in found if judgment is not None]
        if not kept:
            over = abstention(progress, self.text, outcome)
            return progress.noted("certainty", outcome, judgments, over=over)
        return progress.noted("certainty", outcome, judgments, answers=tuple(progress.answers[i] for i in kept))

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)

    def _certainty(self, judgment: Judgment) -> float:
        if self.by == "expectation":
            return judgment.score
        return judgment.labels.values[judgment.labels.index(judgment.label)]


@dataclass(frozen=True, slots=True)
class HallucinationFilter:
    """Keeps the answers in which no sentence is unfaithful (section 5.3 of the paper); else the fixed text.

    Attributes:
        reflector: judges support, sentence by sentence.
        threshold: an answer goes if its worst sentence is below this; undefined sentences do not count.
        text: the fixed text.
    """

    reflector: Reflector
    threshold: float = 0.1
    text: str = ABSTENTION

    def __post_init__(self) -> None:
        need(self.reflector, Role.SUPPORT, "HallucinationFilter")

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Keep or end."""
        if not progress.evidence:
            return progress.noted("faithfulness", "no passages to compare with")
        states = [progress.state(answer.text) for answer in progress.answers]
        found = yield from run.reflect(self.reflector, states)
        worst = [_lowest(reflection) for reflection in found]
        kept = [a for a, low in zip(progress.answers, worst, strict=True) if low is None or low >= self.threshold]
        shown = ", ".join("undefined" if low is None else f"{low:.2f}" for low in worst)
        outcome = f"{len(kept)} of {len(found)} kept, worst sentences {shown}"
        judgments = [judgment for reflection in found for judgment in reflection.judgments]
        if not kept:
            return progress.noted("faithfulness", outcome, judgments, over=abstention(progress, self.text, outcome))
        return progress.noted("faithfulness", outcome, judgments, answers=tuple(kept))

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)


@dataclass(frozen=True, slots=True)
class Cite:
    """Cites the passages for an answer after it was written, by whomever (CG); each sentence becomes a segment.

    Attributes:
        reflector: judges citation.
    """

    reflector: Reflector

    def __post_init__(self) -> None:
        need(self.reflector, Role.CITATION, "Cite")

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """Give each answer its citations; where nothing is defined it keeps those it has."""
        if not progress.evidence:
            return progress.noted("cite", "no passages to cite")
        states = [progress.state(answer.text) for answer in progress.answers]
        found = yield from run.reflect(self.reflector, states)
        answers = tuple(cited(answer, one) for answer, one in zip(progress.answers, found, strict=True))
        judgments = [judgment for reflection in found for judgment in reflection.judgments]
        spans = sum(len(finding.citations) for reflection in found for finding in reflection.findings)
        return progress.noted("cite", f"{spans} spans cited", judgments, answers=answers)

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)


def cited(answer: Answer, reflection: Reflection) -> Answer:
    """The answer with a segment for each sentence and its most probable passage as citation."""
    segments = tuple(_segment(answer, reflection.state, finding) for finding in reflection.findings)
    return replace(answer, segments=segments) if segments and reflection.judgments else answer


def _segment(answer: Answer, state: State, finding: Finding) -> Segment:
    site = finding.site
    owner = next((s for s in answer.segments if s.start <= site.begin < s.end), answer.segments[-1])
    ranked = sorted(finding.citations, key=lambda one: -(one.probability or 0.0))
    first = next((one.site.passage for one in ranked if one.site.passage is not None), None)
    citation = None if first is None else state.passages[first]
    judgments = {**owner.judgments, Role.CITATION: finding.judgment}
    return Segment(site.text, site.begin, site.end, citation, judgments, owner.score, owner.node)


def _lowest(reflection: Reflection) -> float | None:
    scores: Sequence[float] = [judgment.score for judgment in reflection.judgments if judgment.defined]
    return min(scores, default=None)
