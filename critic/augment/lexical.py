"""A critic that counts shared words: needs no model and no training, and is the floor that a trained one must beat.

Deterministic and instant, which also makes it the critic for trying out a whole run before paying for a real one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from critic.cases import Case
from selfrag.reflection.judgment import Judgment, Source

_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be but by can did do does for from had has have he her his how i if in is it its me my of"
        " on or our she so that the their them there they this to us was we were what when where which who whom whose"
        " why will with you your"
    )
)
_ASKS = re.compile(
    r"\?|^\W*(who|what|when|where|which|whose|whom|how|why|is|are|was|were|did|does|do|can|in what|tell me about)\b",
    re.IGNORECASE,
)
_CHECKABLE = re.compile(r"\d|(?<=[a-z,;] )[A-Z]")
_SURE = 0.9


class LexicalCritic:
    """A `Critic` by word overlap. Ignores order, inflection and meaning."""

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        """One judgment a case; never None."""
        return [self._judge(case) for case in cases]

    def _judge(self, case: Case) -> Judgment:
        match case.group:
            case "IsRel":
                return _hard(case, 0 if self._evidence(case, case.instruction) >= 0.4 else 1)
            case "IsSup":
                share = self._evidence(case, case.output)
                return _hard(case, 0 if share >= 0.8 else 1 if share >= 0.4 else 2)
            case "IsUse":
                return _hard(case, 4 if overlap(case.output, case.instruction) < 0.9 else 1)
            case _:
                return _hard(case, self._retrieve(case))

    def _retrieve(self, case: Case) -> int:
        """Position of the label: a question or something checkable retrieves, unless the evidence has it."""
        if not case.preceding and (not case.output or case.evidence is None):
            return 0 if _ASKS.search(case.instruction) else 1
        if case.evidence is not None and self._evidence(case, case.output) >= 0.6:
            return 2
        return 0 if _CHECKABLE.search(case.output) else 1

    def _evidence(self, case: Case, text: str) -> float:
        passage = case.evidence
        return 0.0 if passage is None else overlap(text, f"{passage.title} {passage.text}")


def overlap(text: str, other: str) -> float:
    """Share of the content words of `text` that occur in `other`; all words count where none has content."""
    words = set(_WORD.findall(text.casefold()))
    content = words - _COMMON or words
    return len(content.intersection(_WORD.findall(other.casefold()))) / len(content) if content else 0.0


def _hard(case: Case, position: int) -> Judgment:
    rest = (1 - _SURE) / (len(case.labels) - 1)
    distribution = tuple(_SURE if n == position else rest for n in range(len(case.labels)))
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment(case.labels, case.group, distribution, 1.0, Source.HARD, evidence)
