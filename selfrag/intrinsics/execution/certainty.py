"""Certainty of an answer from its own trace: the score of its path in the beam, calibrated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from retrieval.reading import read_json
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Reflection, State, Steps
from selfrag.intrinsics.labels import CERTAINTY
from selfrag.intrinsics.sentences import judged_turn
from selfrag.reflection.judgment import Judgment


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
