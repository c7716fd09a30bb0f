"""A critic as a judge of entailment: what it calls fully supported follows from the passage (IsSup).

This is the judge `critic:DIR` of `selfrag eval judge`. It was trained on the label scale of the Self-RAG paper, so a
claim that is only partly supported does not follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from critic.cases import Case, Critic
from retrieval.passage import Passage
from selfrag.evaluation.metrics.citations import Pair
from selfrag.evaluation.metrics.entailment import Verdicts
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISSUP

_TITLE = "Title: "
FULLY = ISSUP.names.index("Fully supported")


@dataclass(frozen=True)
class CriticEntailment:
    """An `Entailment` of any critic."""

    critic: Critic  # judges IsSup
    name: str  # what reports call it
    about: Mapping[str, Any] = field(default_factory=dict)  # what decides its judgments, for manifests
    threshold: float | None = None  # least probability of full support; None asks for the most probable label
    min_coverage: float = 0.1  # least probability on the three labels together; below, there is no verdict

    def identity(self) -> Mapping[str, Any]:
        """Kind, critic and limits."""
        return {"kind": "critic", **self.about, "threshold": self.threshold, "min_coverage": self.min_coverage}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """One verdict a pair; None where the critic gave no label any probability."""
        cases = [_case(known, said) for known, said in pairs]
        verdicts: Verdicts = []
        for judgment in self.critic.judge(cases):
            if judgment is None or judgment.coverage < self.min_coverage:
                verdicts.append(None)
            elif self.threshold is None:
                verdicts.append(max(judgment.distribution) == judgment.distribution[FULLY])
            else:
                verdicts.append(judgment.distribution[FULLY] >= self.threshold)
        return verdicts


@dataclass(frozen=True)
class _Late:
    """A `Critic` whose model is loaded with the first case: verdicts that are on disk need none."""

    path: Path

    @cached_property
    def critic(self) -> Critic:
        from critic.student.judge import load_critic

        return load_critic(self.path)

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        return list(self.critic.judge(cases))


def load(directory: str) -> CriticEntailment:
    """The judge of a critic's checkpoint, which is loaded at the first verdict."""
    from critic.student.judge import resolve_critic
    from selfrag.common.provenance import model_files

    path = resolve_critic(directory)
    return CriticEntailment(_Late(path), f"critic {path.name}", {"model": directory, "files": model_files(path)})


def _case(premise: str, claim: str) -> Case:
    """A claim against a passage; the title that `cited.premise` wrote in front becomes one again."""
    head, newline, body = premise.partition("\n")
    titled = bool(newline) and head.startswith(_TITLE)
    title = head.removeprefix(_TITLE) if titled else ""
    evidence = Passage("premise", body if titled else premise, title)
    return Case("IsSup", factual_sentence(title), output=claim, evidence=evidence)


def factual_sentence(title: str) -> str:
    """The instruction that stands for a claim without one, as the rows of claims have it."""
    return f"Write one factual sentence about {title}." if title else "Write one factual sentence."
