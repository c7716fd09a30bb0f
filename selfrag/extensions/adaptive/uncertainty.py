"""Thresholds on uncertainty (Moskvoretskii et al. 2025, arXiv 2501.12835): search where the model alone is unsure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from selfrag.extensions.adaptive.method import Always, RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, Written
from selfrag.interface import Decoder, UserError

ALTERNATIVES = 20
"""Alternatives of a token that are asked for: the most that OpenAI-compatible servers name."""


def sequence_probability(written: Written) -> float:
    """Return the probability of the whole text; 1 for an empty one."""
    tokens = written.probable("max-probability")
    return math.exp(math.fsum(token.logprob for token in tokens))


def mean_entropy(written: Written) -> float:
    """Return the mean entropy of the tokens in nats, over the alternatives that the server names; 0 without tokens."""
    tokens = written.probable("entropy")
    total = 0.0
    for token in tokens:
        if len(token.top) < 2:
            raise UserError(
                "entropy needs the alternatives of every token, which engines of this process do not give; "
                "take an OpenAI-compatible server, or max-probability"
            )
        shares = [math.exp(logprob) for _, logprob in token.top]
        total -= math.fsum(share * math.log(share) for share in shares if share > 0)
    return total / max(1, len(tokens))


@dataclass(frozen=True, slots=True)
class MaxProbability(RetrievalMethod):
    """Searches where the answer without a search is improbable. `threshold` is the least probability that stays."""

    threshold: float = 0.5
    tuned = "threshold"
    grid = (0.05, 0.2, 0.5, 0.8)

    def decoder(self, work: QuestionWork) -> Decoder:
        """Answer alone, and once more with a search if unsure."""
        written = yield from work.read()
        if sequence_probability(written) >= self.threshold:
            return work.answer(written.text)
        return (yield from Always().decoder(work))


@dataclass(frozen=True, slots=True)
class Entropy(RetrievalMethod):
    """Searches where the tokens of the answer without a search have a high mean entropy, above `threshold` nats."""

    threshold: float = 0.5
    tuned = "threshold"
    grid = (0.1, 0.3, 0.6, 1.0)
    ranges = {"threshold": (0, math.inf)}  # noqa: RUF012 - never changed

    def decoder(self, work: QuestionWork) -> Decoder:
        """Answer alone, and once more with a search if unsure."""
        written = yield from work.read(alternatives=ALTERNATIVES)
        if mean_entropy(written) <= self.threshold:
            return work.answer(written.text)
        return (yield from Always().decoder(work))
