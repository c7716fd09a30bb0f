"""Judges that were fitted to a model, by files that it brings.

`combined.json` weighs reflection tokens with words in common by a logistic regression; `certainty.json` calibrates the
path scores of the model's answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from selfrag.common.errors import UserError
from selfrag.common.reading import read_json
from selfrag.judges.critiques import CritiquePair, as_judgment
from selfrag.judges.sentences import judged_turn
from selfrag.judges.tokens import TokenCritiques
from selfrag.judges.words import overlap, shown
from selfrag.prompting import Prompting
from selfrag.reflection.findings import Code, Diagnostic, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput
from selfrag.reflection.intrinsic_labels import CERTAINTY
from selfrag.reflection.judge import Cost, Judge, Scope
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.requests import Steps

FORMAT = 1
LEAST = 1e-4
"""Probabilities are kept this far from 0 and 1 before their logarithms are taken."""


def features(judgment: Judgment, pair: CritiquePair) -> Mapping[str, float]:
    """Return what is weighed: `token`, log-odds of the score; `overlap`, the share of content words in the passage."""
    p = min(max(judgment.score, LEAST), 1 - LEAST)
    return MappingProxyType(
        {
            "token": math.log(p / (1 - p)),
            "overlap": overlap(pair.text, shown(pair.passage)),
        }
    )


FEATURES = ("token", "overlap")


@contextmanager
def _refusing(path: Path, script: str) -> Iterator[None]:
    """Refuse a file that is not what a script writes, in one line."""
    try:
        yield
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = f"make it again by scripts/demo_model/{script}"
        raise UserError(f"{path} cannot be used: {error}; {remedy}") from error


@dataclass(frozen=True, slots=True)
class Weighing:
    """A logistic regression over `features`."""

    intrinsic: str  # what it was learned for
    model: str  # SHA-256 of the weights of the model whose tokens were read
    bias: float
    weights: Mapping[str, float]  # by the names of the features

    @classmethod
    def read(cls, path: Path) -> Weighing:
        """Read a file that `write` made; refuse anything else."""
        with _refusing(path, "learn_combined.py"):
            record = read_json(path)
            if record.pop("format") != FORMAT:
                raise UserError(f"it has another format; this version reads {FORMAT}")
            weighing = cls(**record)
            numbers = [weighing.bias, *weighing.weights.values()]
            if set(weighing.weights) != set(FEATURES) or not all(
                map(math.isfinite, map(float, numbers))
            ):
                raise UserError(f"it needs finite weights of {' and '.join(FEATURES)}")
        return weighing

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(
            json.dumps({"format": FORMAT} | asdict(self), indent=2) + "\n",
            encoding="utf-8",
        )

    def probability(self, judgment: Judgment, pair: CritiquePair) -> float:
        """Return the probability that the text is supported, or the passage relevant."""
        values = features(judgment, pair)
        logit = self.bias + math.fsum(
            self.weights[name] * values[name] for name in FEATURES
        )
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


class CombinedJudge(TokenCritiques):
    """An intrinsic by reflection tokens and words in common. What is not supported in full is unsupported."""

    name = "combined"

    def __init__(
        self,
        intrinsic: str,
        prompting: Prompting,
        weighing: Weighing,
        engine: Any = None,
    ) -> None:
        """Judge as `TokenCritiques` does, by learned weights of tokens and words."""
        super().__init__(intrinsic, prompting, engine)
        self.weighing = weighing

    def judge_pairs(
        self, pairs: Sequence[tuple[JudgeInput, CritiquePair]]
    ) -> Steps[list[Judgment | Diagnostic]]:
        """Return the judgment of each pair; one request a pair."""
        judgments = yield from super().judge_pairs(pairs)
        for position, (_, pair) in enumerate(pairs):
            judgment = judgments[position]
            if isinstance(judgment, Judgment):
                share = self.weighing.probability(judgment, pair)
                judgments[position] = as_judgment(
                    pair, share, JudgmentSource.COMBINED, judgment.coverage
                )
        return judgments


@dataclass(frozen=True, slots=True)
class ScoreCalibrator:
    """Path scores to how often such answers are right: a rising table, interpolated."""

    scores: tuple[float, ...]  # rising [n]
    accuracy: tuple[float, ...]  # the share of right answers there, rising [n]

    def __call__(self, score: float) -> float:
        """Return the certainty that an answer with this path score is right, from 0 to 1."""
        return float(np.interp(score, self.scores, self.accuracy))

    @classmethod
    def read(cls, path: Path) -> ScoreCalibrator:
        """Read a file that `write` made; refuse anything else."""
        with _refusing(path, "learn_certainty.py"):
            record = read_json(path)
            scores, accuracy = (
                list(map(float, record[name])) for name in ("scores", "accuracy")
            )
            rising = scores == sorted(scores) and accuracy == sorted(accuracy)
            if not scores or len(scores) != len(accuracy) or not rising:
                raise UserError("it needs two rising lists of one length")
        return cls(tuple(scores), tuple(accuracy))

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


class TraceCertainty(Judge):
    """Certainty of answers of this library, off their path scores; any other conversation is undefined."""

    name = "tokens"
    labels = CERTAINTY
    cost = Cost.INLINE
    scope = Scope.FINISHED

    def __init__(self, calibrator: ScoreCalibrator) -> None:
        """Judge by a calibrator of path scores."""
        self.calibrator = calibrator

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; asks no engine."""
        return [self._reflection(state) for state in inputs]
        yield []  # a generator, as every judge

    def _reflection(self, state: JudgeInput) -> Reflection:
        site = judged_turn(state)
        if state.path_score is None:
            note = Diagnostic(
                Code.MISSING,
                "tokens tell the certainty of an answer of this library, with its trace",
            )
            return Reflection(state, (Finding(site, None),), diagnostics=(note,))
        distribution = deciles(self.calibrator(state.path_score))
        return Reflection(
            state, (Finding(site, Judgment(CERTAINTY, str(site), distribution, 1.0)),)
        )


def deciles(certainty: float) -> tuple[float, ...]:
    """Return a distribution over the ten deciles whose expectation is `certainty`, kept between 0.05 and 0.95."""
    at = min(max(certainty, 0.05), 0.95) * 10 - 0.5
    low = min(int(at), 8)
    distribution = [0.0] * 10
    distribution[low] = 1 - (at - low)
    distribution[low + 1] = at - low
    return tuple(distribution)
