"""A model that searches by tags, behind a server or a command: settings by the names of `Decoding`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.extensions.search_tags.model import SearchTagModel
from selfrag.interface import (
    Answer,
    Decoding,
    Engine,
    OwnsEngine,
    Passage,
    Retriever,
    Segment,
    SharedRetriever,
    UserError,
)

BUDGET = {
    "passages": "passages",
    "passage_tokens": "passage_tokens",
    "answer_tokens": "tokens",
    "segment_tokens": "turn_tokens",
    "without_evidence": "without_evidence",
}
"""Fields of `Decoding` that a model that searches by tags has, each with its name in `Budget`."""


@dataclass(slots=True)
class ServedSearchTags(OwnsEngine):
    """What `Service` asks, of a `SearchTagModel`."""

    engine: Engine  # of the model
    model: SearchTagModel  # answers
    defaults: Decoding  # settings of its budget, as requests name them

    @classmethod
    def of(cls, model: SearchTagModel) -> ServedSearchTags:
        """Return a model with its own budget as the default."""
        budget = model.searcher.budget
        return cls(
            model.engine,
            model,
            Decoding(
                **{name: getattr(budget, field) for name, field in BUDGET.items()}
            ),
        )

    @property
    def retriever(self) -> Retriever | None:
        """Return what it searches."""
        return self.model.retriever

    @retriever.setter
    def retriever(self, retriever: Retriever) -> None:
        self.model.retriever = SharedRetriever(retriever)

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Return up to `k` passages for each query, best first."""
        if self.retriever is None:
            raise UserError("no retriever: pass retriever=..")
        return self.retriever(queries, k)

    def astream(
        self,
        question: str | Sequence[Mapping[str, str]],
        *,
        evidence: Sequence[Passage] | None,
        decoding: Decoding,
        flow: str | None,
        rewrite_scope: Any,
    ) -> AsyncGenerator[Segment | Answer, None]:
        """Return the pieces of an answer to the last turn; such a model knows no conversations."""
        budget: dict[str, Any] = {}
        foreign = None if flow is None else "flow"
        for name in Decoding.__dataclass_fields__:
            value = getattr(decoding, name)
            if value == getattr(self.defaults, name):
                continue
            if name in BUDGET:
                budget[BUDGET[name]] = value
            else:
                foreign = foreign or name
        if foreign:
            raise UserError(
                f"selfrag.{foreign}: this model searches by tags; it has {', '.join(BUDGET)} and evidence"
            )
        text = question if isinstance(question, str) else question[-1]["content"]
        return self.model.astream(text, evidence=evidence, **budget)

    def generate(self, question: str) -> Answer:
        """Answer one question."""
        return self.model.generate(question)
