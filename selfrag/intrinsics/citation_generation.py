"""Citation generation: which passage sentences each sentence of a response rests on. Its typed result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import CitationCodec
from selfrag.intrinsics.contract import Citation, Reflection, Site, State, Teachable
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role


@dataclass(frozen=True, slots=True)
class CitedSentence:
    """One sentence of the response.

    Attributes:
        site: where, in the response as given.
        judgment: over cited and uncited; None where the model left the sentence out.
        citations: spans of passages; none if uncited.
    """

    site: Site
    judgment: Judgment | None
    citations: tuple[Citation, ...]

    @property
    def is_cited(self) -> bool | None:
        """Whether it rests on a passage; None where undefined."""
        return None if self.judgment is None else self.judgment.label == "cited"


@dataclass(frozen=True, slots=True)
class CitationResult(Result):
    """Citations, sentence by sentence.

    Attributes:
        state: the conversation and the passages that offsets refer to.
        sentences: in the order of the response; uncited ones are among them.
    """

    state: State
    sentences: tuple[CitedSentence, ...]

    @property
    def records(self) -> list[dict[str, Any]]:
        """One object a citation, as the public libraries return them: spans of the response and of a passage."""
        return [
            {
                "response_begin": sentence.site.begin,
                "response_end": sentence.site.end,
                "response_text": sentence.site.text,
                "citation_doc_id": self._name(citation.site),
                "citation_begin": citation.site.begin,
                "citation_end": citation.site.end,
                "citation_text": citation.site.text,
            }
            for sentence in self.sentences
            for citation in sentence.citations
        ]

    def _name(self, site: Site) -> str | None:
        """Id of the passage; None for an earlier turn."""
        return None if site.passage is None else self.state.passages[site.passage].id

    def _values(self) -> dict[str, Any]:
        rows = [
            {
                "begin": sentence.site.begin,
                "end": sentence.site.end,
                "text": sentence.site.text,
                "cited": sentence.is_cited,
                "citations": [
                    {
                        "passage": self._name(citation.site),
                        "begin": citation.site.begin,
                        "end": citation.site.end,
                        "text": citation.site.text,
                        "probability": citation.probability,
                    }
                    for citation in sentence.citations
                ],
                "judgment": None if sentence.judgment is None else sentence.judgment.as_dict(),
            }
            for sentence in self.sentences
        ]
        return {"sentences": rows}

    def _lines(self) -> Iterable[str]:
        for sentence in self.sentences:
            state = {True: "", False: " (no citation)", None: " (undefined)"}[sentence.is_cited]
            yield f"{sentence.site.text}{state}"
            for citation in sentence.citations:
                yield f"- [{self._name(citation.site)}] {citation.site.text}"


class CitationGeneration(Capability[CitationResult]):
    """Cites the passages for the last assistant turn, whoever wrote it (section 3.5 of arXiv 2504.11704)."""

    name = "citation_generation"
    role = Role.CITATION
    needs = Needs(("assistant",), Documents.REQUIRED)
    summary = "which passage sentences does each sentence of the response rest on?"

    @classmethod
    def default_codec(cls) -> Teachable:
        """A distribution over numbered sentences, scored."""
        return CitationCodec(cls.name)

    def result(self, reflection: Reflection) -> CitationResult:
        """One row a sentence."""
        rows = tuple(CitedSentence(f.site, f.judgment, f.citations) for f in reflection.findings)
        return CitationResult(reflection.diagnostics, reflection.state, rows)
