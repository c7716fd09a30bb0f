"""Responses: how faithful each sentence is, what it rests on, how certain it is, and which criteria it meets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from selfrag.common.errors import UserError
from selfrag.intrinsics.capability import (
    Capability,
    Documents,
    JudgmentResult,
    Needs,
    Result,
    YesNoResult,
)
from selfrag.intrinsics.criteria import (
    CORRECTIONS,
    CRITERIA,
    guardian_arguments,
    normalise_name,
)
from selfrag.intrinsics.questions import RewriteResult
from selfrag.judges.chat import CitationCodec, LabelCodec, SentenceCodec, WritingCodec
from selfrag.judges.layout import is_word, one_line
from selfrag.judges.lenient_json import read
from selfrag.judges.sentences import judged_turn, last_turn
from selfrag.reflection.findings import Citation, Reflection, spread
from selfrag.reflection.inputs import JudgeInput, Site, SiteKind
from selfrag.reflection.intrinsic_labels import (
    ANSWER_RELEVANCE,
    CERTAINTY,
    CHANGED,
    CITED,
    COMPLIANCE,
    CORRECTED,
    FAITHFULNESS,
    POLICY,
    RISK,
)
from selfrag.reflection.judgment import Judgment

FAITHFUL = (
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
        return (
            self.judgment.score
            if self.judgment is not None and self.judgment.defined
            else None
        )

    @property
    def degree(self) -> float | None:
        """Value of the most probable label; None as for `faithfulness`."""
        return (
            self.judgment.mode
            if self.judgment is not None and self.judgment.defined
            else None
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
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
        """Return one row a sentence."""
        rows = tuple(
            JudgedSentence(f.site, f.judgment, f.explanation)
            for f in reflection.findings
        )
        return cls(reflection.diagnostics, rows)

    @property
    def lowest(self) -> float | None:
        """Smallest expected faithfulness of any sentence; None if all are undefined."""
        return min(
            (s.faithfulness for s in self.sentences if s.faithfulness is not None),
            default=None,
        )

    @property
    def is_hallucinated(self) -> bool | None:
        """Return whether the most probable label of some sentence is below 0.1, the paper's rule; None without any."""
        degrees = [s.degree for s in self.sentences if s.degree is not None]
        return min(degrees) < HALLUCINATED_BELOW if degrees else None

    def _values(self) -> dict[str, Any]:
        return {
            "hallucinated": self.is_hallucinated,
            "lowest": self.lowest,
            "sentences": self.sentences,
        }

    def _lines(self) -> Iterable[str]:
        for sentence in self.sentences:
            known = (
                "" if sentence.faithfulness is None else f" {sentence.faithfulness:.2f}"
            )
            yield f"{sentence.label or 'undefined'}{known}: {sentence.site.text}"


class HallucinationDetection(Capability[HallucinationResult]):
    """Judges each sentence of the last assistant turn (section 4 of arXiv 2504.11704). Higher is more faithful."""

    name = "hallucination_detection"
    labels = FAITHFULNESS
    summary = "is each sentence of the response faithful to the passages?"
    needs = Needs(("assistant",), Documents.REQUIRED)
    chat = SentenceCodec(name, FAITHFULNESS, FAITHFUL, "Verdict:")
    result_type = HallucinationResult


_ATTRIBUTE = (
    "For each sentence of the last reply, name the number of the numbered sentence that mattered most for it, such as"
    " [07]. Write [{none}] if none did."
)


@dataclass(frozen=True, slots=True)
class CitedSentence:
    """One sentence of the response."""

    site: Site  # where, in the response as given
    # over cited and uncited; None where the model left the sentence out
    judgment: Judgment | None
    citations: tuple[Citation, ...]  # spans of passages; none if uncited

    @property
    def is_cited(self) -> bool | None:
        """Return whether it rests on a passage; None where undefined."""
        return None if self.judgment is None else self.judgment.label == "cited"


@dataclass(frozen=True, slots=True)
class CitationResult(Result):
    """Citations, sentence by sentence."""

    source: ClassVar[str] = "citation"  # what the public libraries call one

    state: JudgeInput  # the conversation and the passages that offsets refer to
    # in the order of the response; uncited ones are among them
    sentences: tuple[CitedSentence, ...]

    @classmethod
    def of(cls, reflection: Reflection) -> CitationResult:
        """Return one row a sentence."""
        rows = tuple(
            CitedSentence(f.site, f.judgment, f.citations) for f in reflection.findings
        )
        return cls(reflection.diagnostics, reflection.state, rows)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return one object a citation, as the public libraries do: spans of the response and of a passage."""
        records = []
        for sentence in self.sentences:
            for citation in sentence.citations:
                record = {
                    f"response_{key}": value
                    for key, value in sentence.site.as_dict().items()
                }
                record |= {
                    f"{self.source}_{key}": value
                    for key, value in self._place(citation.site).items()
                }
                records.append(record)
        return records

    def _place(self, site: Site) -> dict[str, Any]:
        return {"doc_id": self._name(site), **site.as_dict()}

    def _name(self, site: Site) -> str | None:
        """Return the id of the passage; None for an earlier turn."""
        return None if site.passage is None else self.state.passages[site.passage].id

    def _values(self) -> dict[str, Any]:
        rows = []
        for sentence in self.sentences:
            citations = []
            for citation in sentence.citations:
                site = citation.site
                record = {
                    "passage": self._name(site),
                    **site.as_dict(),
                    "probability": citation.probability,
                }
                if site.message is not None:
                    record["turn"] = site.message
                citations.append(record)
            row = {
                **sentence.site.as_dict(),
                "cited": sentence.is_cited,
                "citations": citations,
            }
            rows.append({**row, "judgment": sentence.judgment})
        return {"sentences": rows}

    def _lines(self) -> Iterable[str]:
        for sentence in self.sentences:
            state = {True: "", False: " (no citation)", None: " (undefined)"}[
                sentence.is_cited
            ]
            yield f"{sentence.site.text}{state}"
            for citation in sentence.citations:
                where = (
                    self._name(citation.site)
                    or f"turn {(citation.site.message or 0) + 1}"
                )
                yield f"- [{where}] {citation.site.text}"


class CitationGeneration(Capability[CitationResult]):
    """Cites the passages for the last assistant turn, whoever wrote it (section 6 of arXiv 2504.11704)."""

    name = "citation_generation"
    labels = CITED
    summary = "which passage sentences does each sentence of the response rest on?"
    needs = Needs(("assistant",), Documents.REQUIRED)
    chat = CitationCodec(name)
    result_type = CitationResult


@dataclass(frozen=True, slots=True)
class AttributionResult(CitationResult):
    """The same with earlier turns among the sources, the most important first where an adapter judged."""

    source = "attribution"

    def _place(self, site: Site) -> dict[str, Any]:
        return {"doc_id": self._name(site), "msg_index": site.message, **site.as_dict()}


class ContextAttribution(Capability[AttributionResult]):
    """Names the sentences of passages and earlier turns that mattered most for each sentence of the last reply."""

    name = "context_attribution"
    labels = CITED
    summary = "which sentences of passages and earlier turns mattered for each sentence of the response?"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = CitationCodec(name, _ATTRIBUTE, turns=True)
    result_type = AttributionResult


SCALE = "Reply with one digit from 0 (0 to 10 percent) to 9 (90 to 100 percent)."
AFTER = f"How certain is it that the last reply of the assistant is correct? {SCALE}"
BEFORE = f"How certain is it that the assistant would answer the last message correctly? {SCALE}"


def _asked(state: JudgeInput) -> str:
    return AFTER if state.messages[-1].role == "assistant" else BEFORE


@dataclass(frozen=True, slots=True)
class UncertaintyResult(JudgmentResult):
    """A certainty as a distribution over the ten deciles."""

    @property
    def certainty(self) -> float | None:
        """Expectation, between 0.05 and 0.95; None where undefined."""
        return None if self.judgment is None else self.judgment.score

    @property
    def decile(self) -> float | None:
        """Middle of the most probable decile, which is what was calibrated; None where undefined."""
        return None if self.judgment is None else self.judgment.mode

    def _values(self) -> dict[str, Any]:
        return {
            "certainty": self.certainty,
            "decile": self.decile,
            "judgment": self.judgment,
        }

    def _lines(self) -> Iterable[str]:
        if self.judgment is None:
            return ["certainty undefined"]
        return [
            f"certainty {self.certainty:.2f}, most probable decile {self.decile:.2f}",
            spread(self.judgment),
        ]


class Uncertainty(Capability[UncertaintyResult]):
    """Quantifies certainty after a reply, or before it from the question alone (section 3 of arXiv 2504.11704).

    It is calibrated for the model's own answers only.
    """

    name = "uncertainty"
    labels = CERTAINTY
    summary = "how certain is it that the answer is right?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL)
    chat = LabelCodec(name, CERTAINTY, _asked, judged_turn)
    result_type = UncertaintyResult


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
    favourable = False

    @property
    def risk(self) -> float | None:
        """Probability of the risk; None where undefined."""
        return self.probability


def _scoring(state: JudgeInput) -> str:
    question = (
        state.arguments.get("scoring_schema")
        or guardian_arguments("", "last_turn")["scoring_schema"]
    )
    return f"{one_line(question)} Reply with one word: yes or no."


class Guardian(Capability[RiskResult]):
    """Judges a turn by the argument `criteria`: a name of `CRITERIA`, or a criterion of your own in words.

    The argument `scoring_schema` says which text is judged, by a name of `SCORING` or in words that ask for yes or no;
    it is the last turn by default. Yes, which is a risk, says that the text meets the criterion. Tools, for
    `function_call`, are written into the user's turn.
    """

    name = "guardian"
    labels = RISK
    summary = (
        "does the last turn meet a criterion such as harm, jailbreak or groundedness?"
    )
    needs = Needs(
        ("assistant", "user"), Documents.OPTIONAL, ("criteria",), ("scoring_schema",)
    )
    chat = LabelCodec(name, RISK, _scoring, judged_turn, arguments=needs.arguments)
    result_type = RiskResult

    @classmethod
    def check(cls, state: JudgeInput) -> None:
        """Refuse what makes no sense: see `Needs.check`, and a criterion has its own kind of turn."""
        super().check(state)
        text = state.arguments["criteria"]
        criterion = CRITERIA.get(normalise_name(text))
        if criterion is not None:
            documents = Documents.REQUIRED if criterion.passages else Documents.OPTIONAL
            needs = replace(
                cls.needs, ends_with=criterion.ends_with, documents=documents
            )
            needs.check(f"guardian, {normalise_name(text)}", state)
        elif len(text.split()) < 2:
            raise UserError(
                f"guardian: unknown criterion {text!r:.60}; known: {', '.join(CRITERIA)}; or a sentence"
            )

    @classmethod
    def filled(cls, state: JudgeInput) -> JudgeInput:
        """Return the state with the texts of criterion and scoring schema."""
        last = (
            "user_prompt" if state.messages[-1].role == "user" else "assistant_response"
        )
        schema = state.arguments.get("scoring_schema") or last
        return replace(
            state, arguments=guardian_arguments(state.arguments["criteria"], schema)
        )


@dataclass(frozen=True, slots=True)
class PolicyResult(YesNoResult):
    """Whether a turn complies with a policy, which is its truth value; the judgment may also be `ambiguous`."""

    label = key = "compliant"


class PolicyGuardrails(Capability[PolicyResult]):
    """Judges whether the last turn complies with the argument `policy_text`."""

    name = "policy_guardrails"
    labels = POLICY
    summary = "does the last turn comply with a policy?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("policy_text",))
    chat = LabelCodec(name, POLICY, COMPLIES, judged_turn, arguments=needs.arguments)
    result_type = PolicyResult


class FactualityDetection(Capability[RiskResult]):
    """Judges whether the last reply says anything that passages or conversation contradict or do not support."""

    name = "factuality_detection"
    labels = RISK
    summary = "is anything in the response factually wrong by the passages?"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = LabelCodec(name, RISK, FACTS, judged_turn)
    result_type = RiskResult


@dataclass(frozen=True, slots=True)
class CorrectionResult(RewriteResult):
    """A corrected reply; the original where nothing is wrong."""

    @classmethod
    def of(cls, reflection: Reflection) -> CorrectionResult:
        """Return the correction, or the original."""
        original = reflection.state.response or ""
        text = reflection.text
        kept = text is None or is_word(text, NOTHING)
        return cls(
            reflection.diagnostics,
            original,
            original if kept else str(text),
            text is not None,
        )


class FactualityCorrection(Capability[CorrectionResult]):
    """Writes the last reply anew where passages or conversation contradict it."""

    name = "factuality_correction"
    labels = CORRECTED
    summary = "the response with its factual errors corrected"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = WritingCodec(
        name,
        "correction",
        CORRECTED,
        CORRECT,
        scope=SiteKind.TURN,
        quiet=NOTHING,
        documents=True,
        max_tokens=512,
    )
    result_type = CorrectionResult


MEETS = "Does the last message of the conversation meet the requirement? Reply with one word: yes or no."


@dataclass(frozen=True, slots=True)
class RequirementResult(YesNoResult):
    """Whether a requirement is met, which is its truth value."""

    label = "yes"
    key = "met"

    @property
    def met(self) -> float | None:
        """Probability that it is met; None where undefined."""
        return self.probability


class RequirementCheck(Capability[RequirementResult]):
    """Checks the last turn against the argument `requirement`."""

    name = "requirement_check"
    labels = COMPLIANCE
    summary = "does the last turn meet a requirement?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("requirement",))
    chat = LabelCodec(name, COMPLIANCE, MEETS, last_turn, arguments=needs.arguments)
    result_type = RequirementResult


CATEGORY = "answer_relevance_category"
ANALYSIS = "answer_relevance_analysis"
METHOD = "correction_method"
RELEVANT = "Is the last reply relevant to the last message of the user? Reply with one word: true or false."
REWRITE = (
    "The last reply was found not fully relevant, as stated above. If you agree, write a better one from the documents,"
    " by the correction method. Otherwise repeat it."
)


@dataclass(frozen=True, slots=True)
class AnswerRelevanceResult(YesNoResult):
    """Whether a reply is relevant, which is its truth value, and what is wrong with it."""

    # such as `Too vague or generic`; None where the model named none
    category: str | None
    analysis: str | None  # the model's reasons, if it gave any

    label = key = "relevant"

    @classmethod
    def of(cls, reflection: Reflection) -> AnswerRelevanceResult:
        """Return the judgment, and the fields beside it."""
        judgment = category = analysis = None
        for finding in reflection.findings[:1]:
            judgment = finding.judgment
            analysis = finding.explanation
        root = read(reflection.raw).root
        if root is not None and CATEGORY in (root.members or {}):
            value = root.value[CATEGORY]
            category = value if isinstance(value, str) else None
        return cls(reflection.diagnostics, judgment, category, analysis)

    @property
    def relevant(self) -> float | None:
        """Probability that the reply is relevant; None where undefined."""
        return self.probability

    @property
    def arguments(self) -> dict[str, str]:
        """Return what `AnswerRelevanceRewriter` asks for, as far as the model said it."""
        record = {CATEGORY: self.category, ANALYSIS: self.analysis}
        return {name: value for name, value in record.items() if value is not None}

    def _values(self) -> dict[str, Any]:
        record = {"category": self.category, "analysis": self.analysis}
        return {self.key: self.probability, **record, "judgment": self.judgment}

    def _lines(self) -> Iterable[str]:
        return [
            line
            for line in (spread(self.judgment), self.category, self.analysis)
            if line
        ]


class AnswerRelevanceClassifier(Capability[AnswerRelevanceResult]):
    """Judges whether the last reply is what the user asked for."""

    name = "answer_relevance_classifier"
    labels = ANSWER_RELEVANCE
    summary = "is the response what was asked for?"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = LabelCodec(name, ANSWER_RELEVANCE, RELEVANT, judged_turn)
    result_type = AnswerRelevanceResult


class AnswerRelevanceRewriter(Capability[CorrectionResult]):
    """Writes the last reply anew, by what `AnswerRelevanceClassifier` found (`AnswerRelevanceResult.arguments`)."""

    name = "answer_relevance_rewriter"
    labels = CHANGED
    summary = "the response, made relevant to the question"
    needs = Needs(("assistant",), Documents.REQUIRED, (CATEGORY, ANALYSIS), (METHOD,))
    chat = WritingCodec(
        name,
        "answer_relevance_rewrite",
        CHANGED,
        REWRITE,
        scope=SiteKind.TURN,
        documents=True,
        max_tokens=512,
        arguments=(CATEGORY, ANALYSIS, METHOD),
    )
    result_type = CorrectionResult

    @classmethod
    def check(cls, state: JudgeInput) -> None:
        """Refuse what makes no sense: see `Needs.check`, and a category without a method of its own."""
        super().check(state)
        category = state.arguments[CATEGORY]
        if not state.arguments.get(METHOD) and category not in CORRECTIONS:
            raise UserError(
                f"{cls.name}: no {METHOD} for {category!r:.60}; give one, or of: {', '.join(CORRECTIONS)}"
            )

    @classmethod
    def filled(cls, state: JudgeInput) -> JudgeInput:
        """Return the state with the correction method of its category where none is given."""
        method = state.arguments.get(METHOD) or CORRECTIONS[state.arguments[CATEGORY]]
        return replace(state, arguments={**state.arguments, METHOD: method})
