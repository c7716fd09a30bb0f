"""Judgments by what was fitted to a model, in files that it brings.

`combined.json` weighs reflection tokens with words in common by a logistic regression; `certainty.json` calibrates the
path scores of its answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Reflection, State, Steps
from selfrag.intrinsics.execution.critiques import Pair, plain
from selfrag.intrinsics.execution.tokens import Tokens
from selfrag.intrinsics.execution.words import overlap, shown
from selfrag.intrinsics.labels import CERTAINTY
from selfrag.intrinsics.sentences import judged_turn
from selfrag.reflection.judgment import Judgment, Source

FORMAT = 1
LEAST = 1e-4
"""Probabilities are kept this far from 0 and 1 before their logarithms are taken."""


def features(judgment: Judgment, pair: Pair) -> Mapping[str, float]:
    """What is weighed, by name.

    Returns:
        `token`: log-odds of the group's score; `overlap`: share of the text's content words in the passage.
    """
    p = min(max(judgment.score, LEAST), 1 - LEAST)
    return MappingProxyType({"token": math.log(p / (1 - p)), "overlap": overlap(pair.text, shown(pair.passage))})


FEATURES = ("token", "overlap")


@dataclass(frozen=True, slots=True)
class Weighing:
    """A logistic regression over `features`."""

    intrinsic: str  # what it was learned for
    model: str  # SHA-256 of the weights of the model whose tokens were read
    bias: float
    weights: Mapping[str, float]  # by the names of the features

    @classmethod
    def read(cls, path: Path) -> Weighing:
        """Read a file that `write` made.

        Raises:
            UserError: it cannot be read, or holds something else.
        """
        try:
            record = read_json(path)
            if record.pop("format") != FORMAT:
                raise UserError(f"it has another format; this version reads {FORMAT}")
            found = cls(**record)
            numbers = [found.bias, *(found.weights[name] for name in FEATURES)]
            if set(found.weights) != set(FEATURES) or not all(math.isfinite(float(one)) for one in numbers):
                raise UserError(f"it needs finite weights of {' and '.join(FEATURES)}")
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be used: {error}; make it again by scripts/learn_combined.py") from error
        return found

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps({"format": FORMAT} | asdict(self), indent=2) + "\n", encoding="utf-8")

    def probability(self, judgment: Judgment, pair: Pair) -> float:
        """Probability that the text is supported, or the passage relevant."""
        found = features(judgment, pair)
        logit = self.bias + math.fsum(self.weights[name] * found[name] for name in FEATURES)
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


@dataclass(frozen=True)
class Combined(Tokens):
    """An intrinsic by reflection tokens and words in common. What is not supported in full is unsupported."""

    weighing: Weighing
    name: ClassVar[str] = "combined"

    def judged(self, pairs: Sequence[tuple[State, Pair]]) -> Steps[list[Judgment | Diagnostic]]:
        """The judgment of each pair; one request a pair."""
        found = yield from Tokens.judged(self, pairs)
        return [
            self._weighed(one, pair) if isinstance(one, Judgment) else one
            for one, (_, pair) in zip(found, pairs, strict=True)
        ]

    def _weighed(self, judgment: Judgment, pair: Pair) -> Judgment:
        return plain(pair, self.weighing.probability(judgment, pair), Source.COMBINED, judgment.coverage)


@dataclass(frozen=True, slots=True)
class ScoreCalibrator:
    """Path scores to how often such answers are right: the steps of an isotonic regression."""

    scores: tuple[float, ...]  # borders of the steps, rising [n]
    accuracy: tuple[float, ...]  # the share of right answers there, rising [n]

    def __call__(self, score: float) -> float:
        """Certainty that an answer with this path score is right, from 0 to 1."""
        return float(np.interp(score, self.scores, self.accuracy))

    @classmethod
    def read(cls, path: Path) -> ScoreCalibrator:
        """Read a file that `write` made.

        Raises:
            UserError: it cannot be read, or holds something else.
        """
        try:
            record = read_json(path)
            found = cls(*(tuple(map(float, record[name])) for name in ("scores", "accuracy")))
            lists = (found.scores, found.accuracy)
            if not found.scores or len(set(map(len, lists))) > 1 or any(list(one) != sorted(one) for one in lists):
                raise UserError("it needs two rising lists of one length")
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be used: {error}; make it again by scripts/learn_certainty.py") from error
        return found

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TraceCertainty:
    """An `Execution` of uncertainty for answers of this library; any other conversation is undefined."""

    calibrator: ScoreCalibrator
    name: ClassVar[str] = "tokens"
    cost: ClassVar[Cost] = Cost.INLINE

    def steps(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state; asks no engine."""
        return [self._reflection(state) for state in states]
        yield []  # a generator, as every execution

    def _reflection(self, state: State) -> Reflection:
        site = judged_turn(state)
        trace = None if state.answer is None else state.answer.trace
        if trace is None or trace.best is None:
            note = Diagnostic(Code.MISSING, "tokens tell the certainty of an answer of this library, with its trace")
            return Reflection(state, (Finding(site, None),), diagnostics=(note,))
        certainty = self.calibrator(trace.nodes[trace.best].path_score)
        return Reflection(state, (Finding(site, Judgment(CERTAINTY, str(site), deciles(certainty), 1.0)),))


def deciles(certainty: float) -> tuple[float, ...]:
    """A distribution over the ten deciles whose expectation is `certainty`, kept between 0.05 and 0.95."""
    at = min(max(certainty, 0.05), 0.95) * 10 - 0.5
    low = min(int(at), 8)
    return tuple(1 - (at - low) if place == low else at - low if place == low + 1 else 0.0 for place in range(10))
