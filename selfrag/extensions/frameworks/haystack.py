"""Haystack: a component that answers with citations, from documents or by its own search."""

from __future__ import annotations

from typing import Any

from haystack import Document, GeneratedAnswer, component

from selfrag.interface import (
    Passage,
    SelfRAG,
    UserError,
    Writer,
    document_metadata,
    selfrag_object,
)


@component
class SelfRAGAnswerer:
    """Answers a query: `[1]` in `answers[0].data` is `answers[0].documents[0]`.

    `answers[0].meta["selfrag"]` has segments, judgments and offsets.

    Args:
        model: `demo`, a folder with a checkpoint, or a name on the hub.
        index: folder of an index, or the address of a search server; without one, documents are given to `run`.
        engine: `vllm`, `transformers`, or None for the best one installed.
        settings: fields of `selfrag.Decoding` for every query.
    """

    def __init__(
        self,
        model: str = "demo",
        index: str | None = None,
        engine: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.index = index
        self.engine = engine
        self.settings = settings
        self._rag: SelfRAG | None = None

    def warm_up(self) -> SelfRAG:
        """Load the model."""
        if self._rag is None:
            self._rag = SelfRAG.from_pretrained(
                self.model, retriever=self.index, engine=self.engine
            )
        return self._rag

    @component.output_types(answers=list[GeneratedAnswer])  # type: ignore[untyped-decorator]
    def run(
        self,
        query: str,
        documents: list[Document] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> dict[str, list[GeneratedAnswer]]:
        """Answer a query.

        Args:
            query: the question.
            documents: evidence to use in place of searching; texts and numbers of their `meta` are kept, nothing else.
            settings: fields of `selfrag.Decoding` for this query.
        """
        rag = self.warm_up()
        evidence = None if documents is None else [_passage(item) for item in documents]
        answer = rag.generate(
            query, evidence=evidence, **(self.settings or {}) | (settings or {})
        )
        writer = Writer.of(answer)
        answer_data = GeneratedAnswer(
            data=writer.text,
            query=query,
            documents=[_document(item) for item in writer.sources],
            meta={"selfrag": selfrag_object(answer, writer, None)},
        )
        return {"answers": [answer_data]}


def _passage(document: Document) -> Passage:
    if document.content is None:
        raise UserError(
            f"document {document.id[:60]!r} has no text, and this model reads text only; leave it out"
        )
    metadata = {
        name: value
        for name, value in document.meta.items()
        if isinstance(value, str | int | float)
    }
    return Passage(
        document.id,
        document.content,
        str(document.meta.get("title", "")),
        document.score,
        metadata=metadata,
    )


def _document(passage: Passage) -> Document:
    return Document(
        id=passage.id,
        content=passage.text,
        meta=document_metadata(passage),
        score=passage.score,
    )
