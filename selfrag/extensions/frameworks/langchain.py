"""LangChain: a chat model whose messages carry citations, and a retriever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.content import create_citation
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from selfrag.interface import (
    Answer,
    Passage,
    Piece,
    UserError,
    Writer,
    check_int,
    content_text,
    cut,
    document_metadata,
    selfrag_object,
)

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
}
WITHOUT_EFFECT = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "n",
    "presence_penalty",
    "frequency_penalty",
)
"""Options of chat models that change nothing here: decoding is a search, and it gives one answer."""
MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Names that chat models have for the most new tokens of an answer."""


class ChatSelfRAG(BaseChatModel):
    """A chat model that cites.

    Messages have content blocks of text with LangChain's `citation` annotations; their indices refer to the text of
    the message. `message.response_metadata["selfrag"]` has segments, judgments and cited passages. Arguments of
    `invoke` and `stream` beyond LangChain's own are fields of `selfrag.Decoding`, and `max_tokens`. Stop sequences and
    sampling options such as `temperature` have no effect: segments end where the model ends them, and decoding is a
    search. The output of a tool is kept as a turn; images and other parts that are no text are refused.

    Attributes:
        rag: a `SelfRAG`; it answers.
        settings: fields of `selfrag.Decoding` for every call.
        model: its name in traces.
    """

    rag: Any = Field(exclude=True)
    model: str = "selfrag"
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "selfrag"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model, **self.settings}

    def _options(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `Decoding` for a call."""
        options = {**self.settings, **fields}
        for name in WITHOUT_EFFECT:
            options.pop(name, None)
        for name in MOST_TOKENS:
            most = options.pop(name, None)
            if most is None:
                continue
            check_int(name, most)
            for field in ("answer_tokens", "segment_tokens"):
                options[field] = min(
                    most, options.get(field, getattr(self.rag.defaults, field))
                )
        return options

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return _result(self.rag.generate(_turns(messages), **self._options(kwargs)))

    async def _agenerate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return _result(
            await self.rag.agenerate(_turns(messages), **self._options(kwargs))
        )

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        writer = Writer("brackets")
        for piece in self.rag.stream(_turns(messages), **self._options(kwargs)):
            yield from _chunks(piece, writer)

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        writer = Writer("brackets")
        async for piece in self.rag.astream(_turns(messages), **self._options(kwargs)):
            for chunk in _chunks(piece, writer):
                yield chunk


def _turns(messages: Sequence[BaseMessage]) -> str | list[dict[str, str]]:
    """Return the question alone, or the conversation."""
    turns = []
    for number, message in enumerate(messages, 1):
        role = _ROLES.get(message.type)
        if role is None:
            raise UserError(
                f"a {message.type} message: this model takes messages of people, of itself, of tools and of the system"
            )
        content = message.content
        if role == "assistant":  # what it called or thought is not what it said
            content = str(message.text)
            if not content:
                continue
        turns.append(
            {
                "role": role,
                "content": content_text(content, f"message {number} ({message.type})"),
            }
        )
    if not turns:
        raise UserError("the conversation is empty; give at least one message")
    return (
        turns[0]["content"] if len(turns) == 1 and turns[0]["role"] == "user" else turns
    )


def _block(
    text: str, annotations: Sequence[dict[str, Any]], cited: Sequence[Passage]
) -> dict[str, Any]:
    created = []
    for annotation, passage in zip(annotations, cited, strict=True):
        fields = {**annotation}
        fields.pop("type", None)
        created.append(create_citation(**fields, cited_text=cut(passage.text)))
    return {"type": "text", "text": text, "annotations": created}


def _about(answer: Answer, writer: Writer) -> dict[str, Any]:
    """Fields of the message that ends an answer."""
    usage = answer.usage
    return {
        "response_metadata": {
            "model_name": "selfrag",
            "model_provider": "selfrag",
            "finish_reason": answer.finish,
            "selfrag": selfrag_object(answer, writer, None),
        },
        "usage_metadata": UsageMetadata(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.generated_tokens,
            total_tokens=usage.prompt_tokens + usage.generated_tokens,
            input_token_details={"cache_read": usage.cached_tokens},
        ),
    }


def _result(answer: Answer) -> ChatResult:
    writer = Writer.of(answer)
    content: Any = [_block(writer.text, writer.annotations, writer.cited)]
    return ChatResult(
        generations=[
            ChatGeneration(message=AIMessage(content, **_about(answer, writer)))
        ]
    )


def _chunks(piece: Any, writer: Writer) -> Iterator[ChatGenerationChunk]:
    """Yield the chunks of a segment, or of the end."""

    def chunk(written: Piece) -> ChatGenerationChunk:
        content: Any = [
            {**_block(written.text, written.annotations, written.cited), "index": 0}
        ]
        return ChatGenerationChunk(message=AIMessageChunk(content=content))

    if not isinstance(piece, Answer):
        yield chunk(writer.add(piece))
        return
    yield from map(chunk, writer.rest(piece))
    yield ChatGenerationChunk(
        message=AIMessageChunk(
            content="", chunk_position="last", **_about(piece, writer)
        )
    )


class SelfRAGRetriever(BaseRetriever):
    """The search of a `SelfRAG` as LangChain's documents.

    Attributes:
        rag: a `SelfRAG` with a retriever.
        k: passages a query; `invoke(query, k=..)` changes it for one call.
    """

    rag: Any = Field(exclude=True)
    k: int = 5

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        passages = self.rag.search([query], self.k if k is None else k)[0]
        return [
            Document(
                passage.text,
                id=passage.id,
                metadata=document_metadata(passage) | {"score": passage.score},
            )
            for passage in passages
        ]
