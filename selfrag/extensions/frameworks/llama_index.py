"""LlamaIndex: a query engine with source nodes, and a retriever."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from selfrag.interface import (
    Answer,
    Passage,
    SelfRAG,
    UserError,
    Writer,
    document_metadata,
    selfrag_object,
)


class SelfRAGQueryEngine(CustomQueryEngine):  # type: ignore[misc]
    """Answers queries with citations: `[1]` in the text is the first source node.

    `response.metadata["selfrag"]` has segments, judgments and offsets.

    Attributes:
        rag: answers.
        settings: fields of `selfrag.Decoding` for every query.
    """

    rag: Any
    settings: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it

    def _query(self, query_bundle: QueryBundle) -> Any:
        return super()._query(_text_only(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> Any:
        return await super()._aquery(_text_only(query_bundle))

    def custom_query(self, query_str: str) -> Response:
        """Answer a query."""
        return _response(self.rag.generate(query_str, **self.settings))

    async def acustom_query(self, query_str: str) -> Response:
        """Answer a query while the event loop is free."""
        return _response(await self.rag.agenerate(query_str, **self.settings))


class SelfRAGNodeRetriever(BaseRetriever):  # type: ignore[misc]
    """The search of a `SelfRAG` as LlamaIndex's nodes.

    Args:
        rag: has the retriever.
        k: passages a query.
    """

    def __init__(self, rag: SelfRAG, k: int = 5) -> None:
        self._rag, self._k = rag, k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(
            self._rag.search([_text_only(query_bundle).query_str], self._k)[0]
        )


def _text_only(query: QueryBundle) -> QueryBundle:
    """Return a query as it is; one with an image raises a `UserError`."""
    if query.image_path:
        raise UserError(
            "the query has an image, and this model reads text only; leave it out"
        )
    return query


def _response(answer: Answer) -> Response:
    writer = Writer.of(answer)
    return Response(
        writer.text,
        source_nodes=_nodes(writer.sources),
        metadata={"selfrag": selfrag_object(answer, writer, None)},
    )


def _nodes(passages: Iterable[Passage]) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=passage.id,
                text=passage.text,
                metadata=document_metadata(passage),
            ),
            score=passage.score,
        )
        for passage in passages
    ]
