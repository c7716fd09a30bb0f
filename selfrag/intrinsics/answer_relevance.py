"""Answer relevance: whether a reply is what was asked for, and a reply that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from selfrag.errors import UserError
from selfrag.intrinsics.capability import Capability, Documents, Needs, YesNoResult, spread
from selfrag.intrinsics.chat import LabelCodec, TextCodec
from selfrag.intrinsics.contract import Reflection
from selfrag.intrinsics.dialects.lenient_json import read
from selfrag.intrinsics.guardian import CorrectionResult
from selfrag.intrinsics.labels import ANSWER_RELEVANCE, CHANGED
from selfrag.intrinsics.published import CORRECTIONS
from selfrag.intrinsics.sentences import judged_turn
from selfrag.intrinsics.state import State, same_question

CATEGORY, ANALYSIS, METHOD = "answer_relevance_category", "answer_relevance_analysis", "correction_method"
RELEVANT = "Is the last reply relevant to the last message of the user? Reply with one word: true or false."
REWRITE = (
    "The last reply was found not fully relevant, as stated above. If you agree, write a better one from the documents,"
    " by the correction method. Otherwise repeat it."
)


@dataclass(frozen=True, slots=True)
class AnswerRelevanceResult(YesNoResult):
    """Whether a reply is relevant, which is its truth value, and what is wrong with it."""

    category: str | None  # such as `Too vague or generic`; None where the model named none
    analysis: str | None  # the model's reasons, if it gave any

    label = key = "relevant"

    @classmethod
    def of(cls, reflection: Reflection) -> AnswerRelevanceResult:
        """The judgment, and the fields beside it."""
        finding = next(iter(reflection.findings), None)
        root = read(reflection.raw).root
        named = None if root is None else (root.members or {}).get(CATEGORY)
        category = named.value if named is not None and isinstance(named.value, str) else None
        judgment, analysis = (None, None) if finding is None else (finding.judgment, finding.explanation)
        return cls(reflection.diagnostics, judgment, category, analysis)

    @property
    def relevant(self) -> float | None:
        """Probability that the reply is relevant; None where undefined."""
        return self.probability

    @property
    def arguments(self) -> dict[str, str]:
        """What `AnswerRelevanceRewriter` asks for, as far as the model said it."""
        found = {CATEGORY: self.category, ANALYSIS: self.analysis}
        return {name: value for name, value in found.items() if value is not None}

    def _values(self) -> dict[str, Any]:
        found = {"category": self.category, "analysis": self.analysis}
        return {self.key: self.probability, **found, "judgment": self.judgment}

    def _lines(self) -> Iterable[str]:
        return [line for line in (spread(self.judgment), self.category, self.analysis) if line]


class AnswerRelevanceClassifier(Capability[AnswerRelevanceResult]):
    """Judges whether the last reply is what the user asked for."""

    name = "answer_relevance_classifier"
    role = ANSWER_RELEVANCE.role
    summary = "is the response what was asked for?"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = LabelCodec(name, ANSWER_RELEVANCE, RELEVANT, judged_turn)
    result_type = AnswerRelevanceResult


class AnswerRelevanceRewriter(Capability[CorrectionResult]):
    """Writes the last reply anew, by what `AnswerRelevanceClassifier` found (`AnswerRelevanceResult.arguments`)."""

    name = "answer_relevance_rewriter"
    role = CHANGED.role
    summary = "the response, made relevant to the question"
    needs = Needs(("assistant",), Documents.REQUIRED, (CATEGORY, ANALYSIS), (METHOD,))
    chat = TextCodec(
        name,
        "answer_relevance_rewrite",
        REWRITE,
        CHANGED,
        lambda state, text: "unchanged" if same_question(state.response or "", text) else "changed",
        documents=True,
        max_tokens=512,
        place=judged_turn,
        arguments=(CATEGORY, ANALYSIS, METHOD),
    )
    result_type = CorrectionResult

    @classmethod
    def check(cls, state: State) -> None:
        """Refuse what makes no sense.

        Raises:
            UserError: see `Needs.check`; a category without a method of its own.
        """
        super().check(state)
        category = state.arguments[CATEGORY]
        if not state.arguments.get(METHOD) and category not in CORRECTIONS:
            raise UserError(f"{cls.name}: no {METHOD} for {category!r:.60}; give one, or of: {', '.join(CORRECTIONS)}")

    @classmethod
    def filled(cls, state: State) -> State:
        """The state with the correction method of its category where none is given."""
        method = state.arguments.get(METHOD) or CORRECTIONS[state.arguments[CATEGORY]]
        return replace(state, arguments={**state.arguments, METHOD: method})
