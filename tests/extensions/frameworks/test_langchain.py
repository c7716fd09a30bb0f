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


def test_citations_refer_to_the_text_of_the_message():
    model, cited = ChatSelfRAG(rag=random_rag()), 0
    for question in QUESTIONS:
        answer = random_rag().generate(question)
        message = model.invoke(question)
        assert message.text == answer.cited_text()
        [block] = message.content_blocks or [
            {"type": "text", "text": "", "annotations": []}
        ]
        claims = [segment for segment in answer.segments if segment.citation]
        for annotation, segment in zip(
            block.get("annotations", []), claims, strict=True
        ):
            assert annotation["type"] == "citation"
            assert (
                message.text[annotation["start_index"] : annotation["end_index"]]
                == segment.text.rstrip()
            )
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
            [
                (annotation["start_index"], annotation["url"])
                for block in sent.content_blocks
                for annotation in block.get("annotations", [])
            ]
            for sent in (total, message)
        )
        assert streamed == expected


def test_chains_settings_and_conversations():
    """Field audit S4, defect 13: images were dropped in silence, an empty conversation was an AttributeError."""
    model = ChatSelfRAG(rag=random_rag(), settings={"max_segments": 1})
    chain = (
        ChatPromptTemplate.from_messages([("human", "{question}")])
        | model
        | StrOutputParser()
    )
    assert (
        chain.invoke({"question": "Q"})
        == random_rag().generate("Q", max_segments=1).cited_text()
    )
    assert (
        model.invoke("Q", mode="never").text
        == random_rag().generate("Q", max_segments=1, mode="never").cited_text()
    )
    turns = [
        SystemMessage("Be short."),
        HumanMessage("A?"),
        AIMessage("B."),
        HumanMessage("C?"),
    ]
    assert isinstance(model.invoke(turns).text, str)
    called = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    turns = [
        HumanMessage("A?"),
        called,
        ToolMessage("20 C", tool_call_id="1"),
        HumanMessage("C?"),
    ]
    read = [
        {"role": role, "content": text}
        for role, text in (("user", "A?"), ("tool", "20 C"), ("user", "C?"))
    ]
    assert (
        model.invoke(turns).text
        == random_rag().generate(read, max_segments=1).cited_text()
    )
    short = (
        random_rag()
        .generate("Q", max_segments=1, answer_tokens=4, segment_tokens=4)
        .cited_text()
    )
    assert (
        model.invoke("Q", max_tokens=4, temperature=0.2, top_p=0.5, seed=1).text
        == short
    )
    for wrong, said in (
        ([], "the conversation is empty"),
        ([AIMessage("", tool_calls=[])], "the conversation is empty"),
        (
            [HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])],
            "part of type 'image_url'",
        ),
        (
            [HumanMessage([{"type": "text", "text": "Q"}, {"type": "audio"}])],
            "part of type 'audio'",
        ),
        (
            [
                HumanMessage("Q"),
                ToolMessage([{"type": "image"}], tool_call_id="1"),
                HumanMessage("Q"),
            ],
            "type 'image'",
        ),
    ):
        with refused(said):
            model.invoke(wrong)
    with refused("max_tokens"):
        model.invoke("Q", max_tokens=0)
    with refused("unknown setting 'treshold'"):
        model.invoke("Q", treshold=1)


def test_issue_50_citations_and_documents_have_the_file_and_page():
    rag = random_rag(3)
    metadata = {"file": "/docs/guide.pdf", "page": 3}
    rag.retriever = lambda queries, k: (
        [[Passage("guide-1", "Text.", "Guide", metadata=metadata)]] * len(queries)
    )
    message = ChatSelfRAG(rag=rag, settings={"mode": "always"}).invoke("Q")
    citations = [
        annotation
        for block in message.content_blocks
        for annotation in block.get("annotations", [])
    ]
    assert {annotation["url"] for annotation in citations} == {
        "file:///docs/guide.pdf#page=3"
    }
    assert message.response_metadata["selfrag"]["citations"][0]["metadata"] == metadata
    [document] = SelfRAGRetriever(rag=rag, k=1).invoke("Q")
    assert metadata.items() <= document.metadata.items()
    for blank in (
        "",
        "  ",
        [HumanMessage("")],
        [HumanMessage([])],
        [SystemMessage("Be short.")],
    ):
        with refused():
            ChatSelfRAG(rag=rag).invoke(blank)
