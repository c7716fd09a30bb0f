"""`Judgment`: a critique that was made, as a distribution over labels. Pure values, no model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from selfrag.common.errors import count_of
from selfrag.reflection.labels import GROUPS, LabelSet, Role

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

    Example:
        >>> from selfrag.reflection.labels import ISSUP
        >>> judgment = Judgment(ISSUP, "segment 1", (0.5, 0.25, 0.25), coverage=1.0)
        >>> judgment.label, judgment.score
        ('Fully supported', 0.625)
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
            raise ValueError(
                f"{labels.role}: {len(logprobs)} log-probabilities for {count_of(len(labels), 'labels')}"
            )
        top = max(logprobs)
        if top == -math.inf:
            raise ValueError(f"{labels.role}: no label has any probability")
        raw = [math.exp(value - top) for value in logprobs]
        mass = math.fsum(raw)
        if top > 1e-3 or mass != mass:  # NaN where a value is
            raise ValueError(f"{labels.role}: not log-probabilities: {list(logprobs)}")
        coverage = min(1.0, mass * math.exp(top))
        return cls(
            labels,
            site,
            tuple([value / mass for value in raw]),
            coverage,
            source,
            evidence,
        )

    @property
    def role(self) -> Role:
        """Return what is judged."""
        return self.labels.role

    @property
    def label(self) -> str:
        """Name of the most probable label (the first of equals)."""
        return self.labels.names[self._top]

    @property
    def mode(self) -> float:
        """Value of the most probable label (the first of equals)."""
        return self.labels.values[self._top]

    @property
    def _top(self) -> int:
        return self.distribution.index(max(self.distribution))

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each label, by name."""
        return dict(zip(self.labels.names, self.distribution, strict=True))

    def probability(self, name: str) -> float:
        """Return the probability of one label, by name."""
        return self.distribution[self.labels.index(name)]

    @property
    def score(self) -> float:
        """Normalised group score (appendix A.4): the expectation of the label values.

        Labels without a value (`NA`, `unanswerable`) leave the expectation. NaN where they have all the probability;
        ask `defined` first.
        """
        counted = self.labels.counted
        distribution = self.distribution
        values = self.labels.values
        total = math.fsum([distribution[i] * values[i] for i in counted])
        if len(counted) == len(values):
            return total
        mass = math.fsum([distribution[i] for i in counted])
        return total / mass if mass > 0 else math.nan

    @property
    def defined(self) -> bool:
        """Return whether the most probable label has a value; `NA`, say, means that there is nothing to score."""
        return self._top in self.labels.counted

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
            for value, probability in zip(
                self.labels.values, self.distribution, strict=True
            ):
                shares[place[value]] += probability
        else:
            shares[place[max(place)]] = self.score
            shares[place[min(place)]] = 1.0 - self.score
        return replace(self, labels=labels, distribution=tuple(shares))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "role": str(self.role),
            "distribution": self.probabilities,
            "coverage": self.coverage,
            "source": str(self.source),
            "site": self.site,
            "evidence": self.evidence,
        }
