"""LlamaIndex: query engine, source nodes, retriever."""

from __future__ import annotations

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


def test_the_first_mark_is_the_first_source_node() -> None:
    engine, sources = (
        SelfRAGQueryEngine(rag=random_rag(), settings={"max_segments": 2}),
        0,
    )
    for question in QUESTIONS:
        answer = random_rag().generate(question, max_segments=2)
        found = engine.query(question)
        assert str(found) == answer.cited_text()
        assert [node.node.text for node in found.source_nodes] == [
            passage.text for passage in answer.citations
        ]
        assert found.metadata["selfrag"]["text"] == answer.text
        sources += len(found.source_nodes)
        assert str(asyncio.run(engine.aquery(question))) == str(found)
    assert sources > 4


def test_the_retriever_gives_the_passages_with_their_scores() -> None:
    rag = random_rag()
    rag.retriever = lambda queries, k: [
        passages("d1", "d2", "d3", "d4")[:k] for _ in queries
    ]
    found = SelfRAGNodeRetriever(rag, 3).retrieve("query")
    assert [(node.node.text, node.score) for node in found] == [
        (one.text, one.score) for one in passages("d1", "d2", "d3")
    ]
    assert found[0].node.metadata == {"title": "Title of d1", "url": "selfrag://d1"}
