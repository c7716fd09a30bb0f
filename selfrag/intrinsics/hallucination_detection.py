"""Hallucination detection: how faithful each sentence of a response is to the passages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import SentenceCodec
from selfrag.intrinsics.contract import Reflection, Site
from selfrag.intrinsics.labels import FAITHFULNESS
from selfrag.reflection.judgment import Judgment

TASK = (
    "Compare each sentence of the last reply with the documents. Its verdict is faithful if they support all of it,"
    " partial if they support a part of it, unfaithful if they do not support or if they contradict it, and NA if it"
    " claims nothing that could be checked."
)
HALLUCINATED_BELOW = 0.1
"""A response is hallucinated if some sentence is below this (section 4.2 of the paper)."""


@dataclass(frozen=True, slots=True)
class JudgedSentence:
    """One sentence of the response."""

    site: Site  # where, in the response as given
    judgment: Judgment | None  # over degrees of faithfulness; None where undefined
    explanation: str | None = None  # the model's reasons, if it gave any

    @property
    def label(self) -> str | None:
        """Name of the most probable label; None where undefined."""
        return None if self.judgment is None else self.judgment.label

    @property
    def faithfulness(self) -> float | None:
        """Expectation between 0 and 1; None where undefined, or where the sentence claims nothing."""
        return self.judgment.score if self.judgment is not None and self.judgment.defined else None

    @property
    def degree(self) -> float | None:
        """Value of the most probable label; None as for `faithfulness`."""
        return self.judgment.mode if self.judgment is not None and self.judgment.defined else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.site.as_dict(),
            "label": self.label,
            "faithfulness": self.faithfulness,
            "explanation": self.explanation,
            "judgment": None if self.judgment is None else self.judgment.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class HallucinationResult(Result):
    """Faithfulness, sentence by sentence."""

    sentences: tuple[JudgedSentence, ...]  # in the order of the response

    @classmethod
    def of(cls, reflection: Reflection) -> HallucinationResult:
        """One row a sentence."""
        rows = tuple(JudgedSentence(f.site, f.judgment, f.explanation) for f in reflection.findings)
        return cls(reflection.diagnostics, rows)

    @property
    def lowest(self) -> float | None:
        """Smallest expected faithfulness of any sentence; None if all are undefined."""
        return min((s.faithfulness for s in self.sentences if s.faithfulness is not None), default=None)

    @property
    def is_hallucinated(self) -> bool | None:
        """Whether the most probable label of some sentence lies below 0.1, the paper's rule; None if all undefined."""
        degrees = [s.degree for s in self.sentences if s.degree is not None]
        return min(degrees) < HALLUCINATED_BELOW if degrees else None

    def _values(self) -> dict[str, Any]:
        return {"hallucinated": self.is_hallucinated, "lowest": self.lowest, "sentences": self.sentences}

    def _lines(self) -> Iterable[str]:
        for sentence in self.sentences:
            known = "" if sentence.faithfulness is None else f" {sentence.faithfulness:.2f}"
            yield f"{sentence.label or 'undefined'}{known}: {sentence.site.text}"


class HallucinationDetection(Capability[HallucinationResult]):
    """Judges each sentence of the last assistant turn (section 4 of arXiv 2504.11704). Higher is more faithful."""

    name = "hallucination_detection"
    role = FAITHFULNESS.role
    summary = "is each sentence of the response faithful to the passages?"
    needs = Needs(("assistant",), Documents.REQUIRED)
    chat = SentenceCodec(name, FAITHFULNESS, TASK, "Verdict:")
    result_type = HallucinationResult
