"""The last user turn: whether passages answer it or help, its rewrite that stands alone, and what to ask back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retrieval.passage import Passage
from selfrag.intrinsics.capability import (
    Capability,
    Documents,
    Needs,
    Result,
    YesNoResult,
)
from selfrag.judges.chat import LabelCodec, WritingCodec
from selfrag.judges.conversation import same_question
from selfrag.judges.layout import is_word
from selfrag.judges.sentences import first_passage, last_query
from selfrag.reflection.findings import Code, Diagnostic, Finding, Reflection, spread
from selfrag.reflection.inputs import JudgeInput, SiteKind
from selfrag.reflection.intrinsic_labels import ANSWERABLE, CHANGED, CLEAR, RELEVANCE
from selfrag.reflection.judgment import Judgment

ANSWERS = (
    "Do the documents hold what is needed to answer the last message of the user?"
    " Reply with one word: answerable or unanswerable."
)


@dataclass(frozen=True, slots=True)
class AnswerabilityResult(YesNoResult):
    """Whether a question can be answered, which is its truth value."""

    label = key = "answerable"

    @property
    def answerable(self) -> float | None:
        """Probability of answerable; None where undefined."""
        return self.probability


class Answerability(Capability[AnswerabilityResult]):
    """Predicts whether the passages answer the last user turn (section 5 of arXiv 2504.11704)."""

    name = "answerability"
    labels = ANSWERABLE
    summary = "can the passages answer the question?"
    needs = Needs(("user",), Documents.REQUIRED)
    chat = LabelCodec(name, ANSWERABLE, ANSWERS, last_query)
    result_type = AnswerabilityResult


HELPS = (
    "Does the document help to answer the last message of the user?"
    " Reply with one of: relevant, partially relevant, irrelevant."
)


@dataclass(frozen=True, slots=True)
class JudgedPassage:
    """One passage."""

    passage: Passage  # as given
    # over relevant, partially relevant and irrelevant; None where undefined, as for an empty passage
    judgment: Judgment | None

    @property
    def relevance(self) -> float | None:
        """Expectation between 0 and 1; None where undefined."""
        return None if self.judgment is None else self.judgment.score


@dataclass(frozen=True, slots=True)
class RelevanceResult(Result):
    """How relevant passages are."""

    passages: tuple[JudgedPassage, ...]  # in the caller's order

    @classmethod
    def of(cls, reflection: Reflection) -> RelevanceResult:
        """Return one row a passage."""
        judged = {
            finding.site.passage: finding.judgment for finding in reflection.findings
        }
        passages = enumerate(reflection.state.passages)
        rows = [
            JudgedPassage(passage, judged.get(index)) for index, passage in passages
        ]
        return cls(reflection.diagnostics, tuple(rows))

    def _values(self) -> dict[str, Any]:
        rows = [
            {
                "passage": row.passage.id,
                "relevance": row.relevance,
                "judgment": row.judgment,
            }
            for row in self.passages
        ]
        return {"passages": rows}

    def _lines(self) -> Iterable[str]:
        return [f"[{row.passage.id}] {spread(row.judgment)}" for row in self.passages]


class ContextRelevance(Capability[RelevanceResult]):
    """Judges whether each passage helps to answer the last user turn."""

    name = "context_relevance"
    labels = RELEVANCE
    summary = "does each passage help to answer the question?"
    needs = Needs(("user",), Documents.REQUIRED)
    chat = LabelCodec(name, RELEVANCE, HELPS, first_passage)
    result_type = RelevanceResult

    def parts(self, state: JudgeInput) -> Sequence[JudgeInput]:
        """Return one state a passage without empty ones."""
        return [
            replace(state, passages=(state.passages[index],)) for index in state.filled
        ]

    def merged(
        self, state: JudgeInput, reflections: Sequence[Reflection]
    ) -> Reflection:
        """Return one finding a passage, empty ones undefined, at sites of the whole state."""
        by_index = dict(zip(state.filled, reflections, strict=True))
        findings: list[Finding] = []
        notes: list[Diagnostic] = []
        for index in range(len(state.passages)):
            reflection = by_index.get(index)
            site = state.in_passage(SiteKind.PASSAGE, index)
            judgment = (
                None if reflection is None else next(iter(reflection.judgments), None)
            )
            if judgment is not None:
                judgment = replace(
                    judgment, site=str(site), evidence=state.passages[index].id
                )
            findings.append(Finding(site, judgment))
            if reflection is None:
                notes.append(
                    Diagnostic(Code.EMPTY, f"passage {index + 1} is empty", index)
                )
            else:
                notes += [replace(note, site=index) for note in reflection.diagnostics]
        return Reflection(
            state,
            tuple(findings),
            raw="\n".join(r.raw for r in reflections),
            diagnostics=tuple(notes),
        )


REWRITE = (
    "Rewrite the last message of the user so that it can be understood without the conversation."
    " If it can be already, repeat it unchanged."
)


@dataclass(frozen=True, slots=True)
class RewriteResult(Result):
    """A rewritten turn."""

    original: str  # the turn as given
    text: str  # the rewrite; the original where the model wrote none
    defined: bool  # whether the model wrote one

    @classmethod
    def of(cls, reflection: Reflection) -> RewriteResult:
        """Return the rewrite, or the original."""
        original = reflection.state.query or ""
        text = reflection.text
        return cls(
            reflection.diagnostics,
            original,
            original if text is None else text,
            text is not None,
        )

    @property
    def changed(self) -> bool:
        """Return whether the rewrite says something else than the original, spacing and case aside."""
        return not same_question(self.original, self.text)

    def _values(self) -> dict[str, Any]:
        return {
            "rewrite": self.text,
            "changed": self.changed,
            "defined": self.defined,
            "original": self.original,
        }

    def _lines(self) -> Iterable[str]:
        yield self.text
        if not self.changed:
            yield (
                "(unchanged)"
                if self.defined
                else "(the model wrote no rewrite; this is the original)"
            )


class QueryRewrite(Capability[RewriteResult]):
    """Makes the last user turn independent of the conversation (section 2 of arXiv 2504.11704)."""

    name = "query_rewrite"
    labels = CHANGED
    summary = "the last question, understandable on its own"
    needs = Needs(("user",), Documents.UNUSED)
    chat = WritingCodec(name, "rewritten_question", CHANGED, REWRITE)
    result_type = RewriteResult


CLEAR_WORD = "CLEAR"
"""What a model writes where there is nothing to ask."""

CLARIFY = (
    "If the last message of the user is too vague or ambiguous to be answered, write one short question that asks the"
    f" user for what is missing. Otherwise write {CLEAR_WORD}."
)


@dataclass(frozen=True, slots=True)
class ClarificationResult(Result):
    """A question back to the user, or none."""

    question: str | None  # what to ask; None if nothing need be asked, or if undefined
    defined: bool  # whether the model decided at all

    @classmethod
    def of(cls, reflection: Reflection) -> ClarificationResult:
        """Return the question, if there is one."""
        text = reflection.text
        question = None if text is None or is_word(text, CLEAR_WORD) else text
        return cls(reflection.diagnostics, question, text is not None)

    @property
    def needed(self) -> bool:
        """Return whether there is something to ask."""
        return self.question is not None

    def _values(self) -> dict[str, Any]:
        return {
            "needed": self.needed,
            "question": self.question,
            "defined": self.defined,
        }

    def _lines(self) -> Iterable[str]:
        return [
            self.question or ("the question is clear" if self.defined else "undefined")
        ]


class QueryClarification(Capability[ClarificationResult]):
    """Writes a question back to the user if the last turn cannot be answered as it is."""

    name = "query_clarification"
    labels = CLEAR
    summary = "is there something to ask back before answering?"
    needs = Needs(("user",), Documents.OPTIONAL)
    chat = WritingCodec(
        name, "clarification", CLEAR, CLARIFY, quiet=CLEAR_WORD, documents=True
    )
    result_type = ClarificationResult
