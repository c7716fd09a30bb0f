"""LlamaIndex: query engine, source nodes, retriever."""

import asyncio

import pytest
from served import random_rag
from written import passages

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")

from selfrag.extensions.frameworks.llama_index import (
    SelfRAGNodeRetriever,
    SelfRAGQueryEngine,
)

QUESTIONS = [f"question {number}" for number in range(8)]


def test_the_first_mark_is_the_first_source_node():
    engine = SelfRAGQueryEngine(rag=random_rag(), settings={"max_segments": 2})
    sources = 0
    for question in QUESTIONS:
        answer = random_rag().generate(question, max_segments=2)
        response = engine.query(question)
        assert str(response) == answer.cited_text()
        texts = [passage.text for passage in answer.citations]
        assert [node.node.text for node in response.source_nodes] == texts
        assert response.metadata["selfrag"]["text"] == answer.text
        sources += len(response.source_nodes)
        assert str(asyncio.run(engine.aquery(question))) == str(response)
    assert sources > 4


def test_the_retriever_gives_the_passages_with_their_scores():
    rag = random_rag()
    hits = passages("d1", "d2", "d3", "d4")
    rag.retriever = lambda queries, k: [hits[:k] for _ in queries]
    nodes = SelfRAGNodeRetriever(rag, 3).retrieve("query")
    assert [node.node.text for node in nodes] == [hit.text for hit in hits[:3]]
    assert [node.score for node in nodes] == [hit.score for hit in hits[:3]]
    assert nodes[0].node.metadata == {"title": "Title of d1", "url": "selfrag://d1"}
