"""Haystack: a component in a pipeline, with documents and with its own search."""

from __future__ import annotations

from typing import Any

import pytest
from served import random_rag
from written import passages

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document, Pipeline

from selfrag.api import SelfRAG
from selfrag.extensions.frameworks.haystack import SelfRAGAnswerer

QUESTIONS = [f"question {number}" for number in range(8)]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def load(*given: Any, **options: Any) -> SelfRAG:
        calls.append((given, options))
        return random_rag()

    monkeypatch.setattr(SelfRAG, "from_pretrained", load)
    return calls


def test_an_answer_with_its_documents(loaded: list[Any]) -> None:
    pipeline, cited = Pipeline(), 0
    pipeline.add_component(
        "answerer", SelfRAGAnswerer(index="folder", settings={"max_segments": 2})
    )
    for question in QUESTIONS:
        [found] = pipeline.run({"answerer": {"query": question}})["answerer"]["answers"]
        answer = random_rag().generate(question, max_segments=2)
        assert found.data == answer.cited_text()
        assert [one.content for one in found.documents] == [
            passage.text for passage in answer.citations
        ]
        assert found.meta["selfrag"]["text"] == answer.text
        cited += len(found.documents)
    assert cited > 4
    assert loaded == [(("demo",), {"retriever": "folder", "engine": None})]


def test_documents_are_evidence(loaded: list[Any]) -> None:
    place = {"file": "/docs/guide.pdf", "page": 3}
    given = [
        Document(id=one.id, content=one.text, meta={"title": one.title} | place)
        for one in passages("d1", "d2")
    ]
    evidence = random_rag().generate(
        "question 1", evidence=passages("d1", "d2"), mode="always"
    )
    [found] = SelfRAGAnswerer().run(
        "question 1", documents=given, settings={"mode": "always"}
    )["answers"]
    assert found.data == evidence.cited_text()
    assert {one.id for one in found.documents} <= {"d1", "d2"}
    assert {one.meta["url"] for one in found.documents} == {
        "file:///docs/guide.pdf#page=3"
    }
    assert all(place.items() <= one.meta.items() for one in found.documents)


def test_a_pipeline_is_written_and_read(loaded: list[Any]) -> None:
    pipeline = Pipeline()
    pipeline.add_component("answerer", SelfRAGAnswerer(model="m", settings={"beam": 1}))
    again = Pipeline.loads(
        pipeline.dumps(), allowed_modules=["selfrag.extensions.frameworks.haystack"]
    )
    assert again.get_component("answerer").settings == {"beam": 1}
    assert loaded == []


@pytest.mark.parametrize("setting", ["abstain", "write"])
def test_no_documents_are_said_and_nothing_is_invented(
    loaded: list[Any], setting: str
) -> None:
    """Field audit A1, in Haystack."""
    settings = {"mode": "always", "without_evidence": setting}
    [found] = SelfRAGAnswerer(settings=settings).run("question 1", documents=[])[
        "answers"
    ]
    about = found.meta["selfrag"]
    assert (about["abstained"], about["without_evidence"]) == (
        setting == "abstain",
        setting == "write",
    )
    assert (about["reason"], found.documents) == ("nothing found", [])
    assert (found.data == "I don't know the answer") == (setting == "abstain")
