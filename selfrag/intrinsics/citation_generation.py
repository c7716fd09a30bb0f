"""Citation generation and context attribution: which sentences each sentence of a response rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import CitationCodec
from selfrag.intrinsics.contract import Citation, Reflection, Site, State
from selfrag.intrinsics.labels import CITED
from selfrag.reflection.judgment import Judgment

_ATTRIBUTE = (
    "For each sentence of the last reply, name the number of the numbered sentence that mattered most for it, such as"
    " [07]. Write [{none}] if none did."
)


@dataclass(frozen=True, slots=True)
class CitedSentence:
    """One sentence of the response."""

    site: Site  # where, in the response as given
    judgment: Judgment | None  # over cited and uncited; None where the model left the sentence out
    citations: tuple[Citation, ...]  # spans of passages; none if uncited

    @property
    def is_cited(self) -> bool | None:
        """Whether it rests on a passage; None where undefined."""
        return None if self.judgment is None else self.judgment.label == "cited"


@dataclass(frozen=True, slots=True)
class CitationResult(Result):
    """Citations, sentence by sentence."""

    source: ClassVar[str] = "citation"  # what the public libraries call one

    state: State  # the conversation and the passages that offsets refer to
    sentences: tuple[CitedSentence, ...]  # in the order of the response; uncited ones are among them

    @classmethod
    def of(cls, reflection: Reflection) -> CitationResult:
        """One row a sentence."""
        rows = tuple(CitedSentence(f.site, f.judgment, f.citations) for f in reflection.findings)
        return cls(reflection.diagnostics, reflection.state, rows)

    @property
    def records(self) -> list[dict[str, Any]]:
        """One object a citation, as the public libraries return them: spans of the response and of a passage."""
        return [
            {f"response_{key}": value for key, value in sentence.site.as_dict().items()}
            | {f"{self.source}_{key}": value for key, value in self._place(citation.site).items()}
            for sentence in self.sentences
            for citation in sentence.citations
        ]

    def _place(self, site: Site) -> dict[str, Any]:
        return {"doc_id": self._name(site), **site.as_dict()}

    def _name(self, site: Site) -> str | None:
        """Id of the passage; None for an earlier turn."""
        return None if site.passage is None else self.state.passages[site.passage].id

    def _values(self) -> dict[str, Any]:
        rows = [
            {
                **sentence.site.as_dict(),
                "cited": sentence.is_cited,
                "citations": [
                    {"passage": self._name(one.site), **one.site.as_dict(), "probability": one.probability}
                    | ({} if one.site.message is None else {"turn": one.site.message})
                    for one in sentence.citations
                ],
                "judgment": sentence.judgment,
            }
            for sentence in self.sentences
        ]
        return {"sentences": rows}

    def _lines(self) -> Iterable[str]:
        for sentence in self.sentences:
            state = {True: "", False: " (no citation)", None: " (undefined)"}[sentence.is_cited]
            yield f"{sentence.site.text}{state}"
            for citation in sentence.citations:
                where = self._name(citation.site) or f"turn {(citation.site.message or 0) + 1}"
                yield f"- [{where}] {citation.site.text}"


class CitationGeneration(Capability[CitationResult]):
    """Cites the passages for the last assistant turn, whoever wrote it (section 6 of arXiv 2504.11704)."""

    name = "citation_generation"
    role = CITED.role
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
    role = CITED.role
    summary = "which sentences of passages and earlier turns mattered for each sentence of the response?"
    needs = Needs(("assistant",), Documents.OPTIONAL)
    chat = CitationCodec(name, _ATTRIBUTE, turns=True)
    result_type = AttributionResult
