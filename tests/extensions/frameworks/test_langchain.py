"""LangChain's own standard tests, and its citations."""

import pytest
from refusals import refused
from served import random_rag
from written import passages

pytest.importorskip("langchain_tests", reason="langchain-tests is not installed")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    RetrieversIntegrationTests,
)
from langchain_tests.unit_tests import ChatModelUnitTests

from retrieval.passage import Passage
from selfrag.extensions.frameworks.langchain import ChatSelfRAG, SelfRAGRetriever

QUESTIONS = [f"question {number}" for number in range(8)]


class Own:
    """What LangChain's tests of chat models ask for."""

    @property
    def chat_model_class(self):
        return ChatSelfRAG

    @property
    def chat_model_params(self):
        return {"rag": random_rag(3)}

    @property
    def supports_model_override(self):
        return False


class TestUnit(Own, ChatModelUnitTests):
    pass


class TestStandard(Own, ChatModelIntegrationTests):
    pass


class TestRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        return SelfRAGRetriever

    @property
    def retriever_constructor_params(self):
        rag = random_rag()
        rag.retriever = lambda queries, k: [
            passages("e1", "e2", "e3", "e4", "e5")[:k] for _ in queries
        ]
        return {"rag": rag}

    @property
    def retriever_query_example(self):
        return "query"


def annotations(message):
    """Those of all blocks of a message."""
    found = []
    for block in message.content_blocks:
        found += block.get("annotations", [])
    return found


def test_citations_refer_to_the_text_of_the_message():
    model, cited = ChatSelfRAG(rag=random_rag()), 0
    for question in QUESTIONS:
        answer = random_rag().generate(question)
        message = model.invoke(question)
        assert message.text == answer.cited_text()
        claims = [segment for segment in answer.segments if segment.citation]
        for annotation, segment in zip(annotations(message), claims, strict=True):
            start, end = annotation["start_index"], annotation["end_index"]
            assert annotation["type"] == "citation"
            assert message.text[start:end] == segment.text.rstrip()
            assert annotation["cited_text"] == segment.citation.text
            cited += 1
        assert message.response_metadata["selfrag"]["text"] == answer.text
    assert cited > 5


def test_a_stream_adds_up_to_the_same_message():
    model = ChatSelfRAG(rag=random_rag())
    for question in QUESTIONS:
        message, chunks = model.invoke(question), list(model.stream(question))
        total = chunks[0]
        for chunk in chunks[1:]:
            total += chunk
        assert total.text == message.text
        assert total.usage_metadata == message.usage_metadata
        streamed, expected = (
            [(part["start_index"], part["url"]) for part in annotations(sent)]
            for sent in (total, message)
        )
        assert streamed == expected


def test_chains_settings_and_conversations():
    """Field audit S4, defect 13: images were dropped in silence, an empty conversation was an AttributeError."""
    model = ChatSelfRAG(rag=random_rag(), settings={"max_segments": 1})

    def text(question, **settings):
        answer = random_rag().generate(question, max_segments=1, **settings)
        return answer.cited_text()

    prompt = ChatPromptTemplate.from_messages([("human", "{question}")])
    chain = prompt | model | StrOutputParser()
    assert chain.invoke({"question": "Q"}) == text("Q")
    assert model.invoke("Q", mode="never").text == text("Q", mode="never")
    turns = [
        SystemMessage("Be short."),
        HumanMessage("A?"),
        AIMessage("B."),
        HumanMessage("C?"),
    ]
    assert isinstance(model.invoke(turns).text, str)
    called = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    turns[:3] = [turns[1], called, ToolMessage("20 C", tool_call_id="1")]
    read = [
        {"role": "user", "content": "A?"},
        {"role": "tool", "content": "20 C"},
        {"role": "user", "content": "C?"},
    ]
    assert model.invoke(turns).text == text(read)
    options = {"max_tokens": 4, "temperature": 0.2, "top_p": 0.5, "seed": 1}
    short = text("Q", answer_tokens=4, segment_tokens=4)
    assert model.invoke("Q", **options).text == short
    tool = ToolMessage([{"type": "image"}], tool_call_id="1")
    for wrong, options, said in (
        ([], {}, "the conversation is empty"),
        ([AIMessage("")], {}, "the conversation is empty"),
        ([HumanMessage([{"type": "audio"}])], {}, "part of type 'audio'"),
        ([HumanMessage("Q"), tool, HumanMessage("Q")], {}, "type 'image'"),
        ("Q", {"max_tokens": 0}, "max_tokens"),
        ("Q", {"treshold": 1}, "unknown setting 'treshold'"),
    ):
        with refused(said):
            model.invoke(wrong, **options)


def test_issue_50_citations_and_documents_have_the_file_and_page():
    rag = random_rag(3)
    metadata = {"file": "/docs/guide.pdf", "page": 3}
    hit = Passage("guide-1", "Text.", "Guide", metadata=metadata)
    rag.retriever = lambda queries, k: [[hit]] * len(queries)
    message = ChatSelfRAG(rag=rag, settings={"mode": "always"}).invoke("Q")
    urls = {annotation["url"] for annotation in annotations(message)}
    assert urls == {"file:///docs/guide.pdf#page=3"}
    assert message.response_metadata["selfrag"]["citations"][0]["metadata"] == metadata
    [document] = SelfRAGRetriever(rag=rag, k=1).invoke("Q")
    assert metadata.items() <= document.metadata.items()
    for blank in (
        "",
        "  ",
        [HumanMessage("")],
        [HumanMessage([])],
        [SystemMessage("A")],
    ):
        with refused():
            ChatSelfRAG(rag=rag).invoke(blank)
