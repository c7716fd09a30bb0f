"""Criteria, policies, requirements and facts: whether a turn meets, complies with or contradicts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfrag.errors import UserError
from selfrag.intrinsics.capability import Capability, Documents, Needs, YesNoResult
from selfrag.intrinsics.catalog import CRITERIA, guardian_arguments, named
from selfrag.intrinsics.chat import LabelCodec, TextCodec
from selfrag.intrinsics.contract import Reflection
from selfrag.intrinsics.dialects.registry import BINDINGS
from selfrag.intrinsics.labels import COMPLIANCE, CORRECTED, POLICY, RISK
from selfrag.intrinsics.layout import is_word, one_line
from selfrag.intrinsics.questions import RewriteResult
from selfrag.intrinsics.sentences import judged_turn, last_turn
from selfrag.intrinsics.state import State

COMPLIES = "Does the last message comply with the policy? Reply with one word: Yes, No or Ambiguous."
FACTS = (
    "Is any claim of the last reply contradicted by the documents or the conversation, or without support there?"
    " Reply with one word: yes or no."
)
NOTHING = "none"
"""What a model writes where nothing is to be corrected."""
CORRECT = (
    "If any claim of the last reply is contradicted by the documents or the conversation, write the reply with these"
    f" claims corrected. Otherwise write {NOTHING}."
)


@dataclass(frozen=True, slots=True)
class RiskResult(YesNoResult):
    """Whether there is a risk, which is its truth value."""

    label = key = "risk"

    @property
    def risk(self) -> float | None:
        """Probability of the risk; None where undefined."""
        return self.probability


def _scoring(state: State) -> str:
    asked = state.arguments.get("scoring_schema") or guardian_arguments("", "last_turn")["scoring_schema"]
    return f"{one_line(asked)} Reply with one word: yes or no."


class Guardian(Capability[RiskResult]):
    """Judges a turn by the argument `criteria`: a name of `CRITERIA`, or a criterion of your own in words.

    The argument `scoring_schema` says which text is judged, by a name of `SCORING` or in words that ask for yes or no;
    it is the last turn by default. Yes, which is a risk, says that the text meets the criterion. Tools, for
    `function_call`, are written into the user's turn.
    """

    name = "guardian"
    role = RISK.role
    summary = "does the last turn meet a criterion such as harm, jailbreak or groundedness?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("criteria",), ("scoring_schema",))
    chat = LabelCodec(name, RISK, _scoring, judged_turn, arguments=needs.arguments)
    result_type = RiskResult

    @classmethod
    def check(cls, state: State) -> None:
        """Refuse what makes no sense: see `Needs.check`, and a criterion has its own kind of turn."""
        super().check(state)
        given = state.arguments["criteria"]
        criterion = CRITERIA.get(named(given))
        if criterion is not None:
            documents = Documents.REQUIRED if criterion.passages else Documents.OPTIONAL
            needs = replace(cls.needs, ends_with=criterion.ends_with, documents=documents)
            needs.check(f"guardian, {named(given)}", state)
        elif len(given.split()) < 2:
            raise UserError(f"guardian: unknown criterion {given!r:.60}; known: {', '.join(CRITERIA)}; or a sentence")

    @classmethod
    def filled(cls, state: State) -> State:
        """The state with the texts of criterion and scoring schema."""
        last = "user_prompt" if state.messages[-1].role == "user" else "assistant_response"
        asked = state.arguments.get("scoring_schema") or last
        return replace(state, arguments=guardian_arguments(state.arguments["criteria"], asked))


@dataclass(frozen=True, slots=True)
class PolicyResult(YesNoResult):
    """Whether a turn complies with a policy, which is its truth value; the judgment may also be `ambiguous`."""

    label = key = "compliant"


class PolicyGuardrails(Capability[PolicyResult]):
    """Judges whether the last turn complies with the argument `policy_text`."""

    name = "policy_guardrails"
    role = POLICY.role
    summary = "does the last turn comply with a policy?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("policy_text",))
    chat = LabelCodec(name, POLICY, COMPLIES, judged_turn, arguments=needs.arguments)
    result_type = PolicyResult


class FactualityDetection(Capability[RiskResult]):
    """Judges whether the last reply says anything that passages or conversation contradict or do not support."""

    name = "factuality_detection"
    role = RISK.role
    summary = "is anything in the response factually wrong by the passages?"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = LabelCodec(name, RISK, FACTS, judged_turn)
    result_type = RiskResult


@dataclass(frozen=True, slots=True)
class CorrectionResult(RewriteResult):
    """A corrected reply; the original where nothing is wrong."""

    @classmethod
    def of(cls, reflection: Reflection) -> CorrectionResult:
        """The correction, or the original."""
        original, text = reflection.state.response or "", reflection.text
        kept = text is None or is_word(text, NOTHING)
        return cls(reflection.diagnostics, original, original if kept else str(text), text is not None)


class FactualityCorrection(Capability[CorrectionResult]):
    """Writes the last reply anew where passages or conversation contradict it."""

    name = "factuality_correction"
    role = CORRECTED.role
    summary = "the response with its factual errors corrected"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = TextCodec(BINDINGS[name], CORRECT, documents=True, max_tokens=512)
    result_type = CorrectionResult


MEETS = "Does the last message of the conversation meet the requirement? Reply with one word: yes or no."


@dataclass(frozen=True, slots=True)
class RequirementResult(YesNoResult):
    """Whether a requirement is met, which is its truth value."""

    label, key = "yes", "met"

    @property
    def met(self) -> float | None:
        """Probability that it is met; None where undefined."""
        return self.probability


class RequirementCheck(Capability[RequirementResult]):
    """Checks the last turn against the argument `requirement`."""

    name = "requirement_check"
    role = COMPLIANCE.role
    summary = "does the last turn meet a requirement?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("requirement",))
    chat = LabelCodec(name, COMPLIANCE, MEETS, last_turn, arguments=needs.arguments)
    result_type = RequirementResult
