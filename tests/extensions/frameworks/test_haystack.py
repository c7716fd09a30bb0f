"""Haystack: a component in a pipeline, with documents and with its own search."""

import pytest
from served import random_rag
from written import PROMPTING, passages, scripted

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document, Pipeline

from selfrag.api import SelfRAG
from selfrag.extensions.frameworks.haystack import SelfRAGAnswerer

QUESTIONS = [f"question {number}" for number in range(8)]


@pytest.fixture
def loaded(monkeypatch):
    calls = []

    def load(*arguments, **options):
        calls.append((arguments, options))
        return random_rag()

    monkeypatch.setattr(SelfRAG, "from_pretrained", load)
    return calls


def test_an_answer_with_its_documents(loaded):
    pipeline, cited = Pipeline(), 0
    answerer = SelfRAGAnswerer(index="folder", settings={"max_segments": 2})
    pipeline.add_component("answerer", answerer)
    for question in QUESTIONS:
        [reply] = pipeline.run({"answerer": {"query": question}})["answerer"]["answers"]
        answer = random_rag().generate(question, max_segments=2)
        assert reply.data == answer.cited_text()
        texts = [passage.text for passage in answer.citations]
        assert [document.content for document in reply.documents] == texts
        assert reply.meta["selfrag"]["text"] == answer.text
        cited += len(texts)
    assert cited > 4
    assert loaded == [(("demo",), {"retriever": "folder", "engine": None})]


def test_documents_are_evidence(loaded):
    place = {"file": "/docs/guide.pdf", "page": 3}
    evidence = passages("d1", "d2")
    documents = [
        Document(id=hit.id, content=hit.text, meta={"title": hit.title} | place)
        for hit in evidence
    ]
    answer = random_rag().generate("question 1", evidence=evidence, mode="always")
    [reply] = SelfRAGAnswerer().run(
        "question 1", documents=documents, settings={"mode": "always"}
    )["answers"]
    assert reply.data == answer.cited_text()
    for passage in reply.documents:
        assert passage.id in ("d1", "d2")
        assert passage.meta["url"] == "file:///docs/guide.pdf#page=3"
        assert place.items() <= passage.meta.items()


def test_a_pipeline_is_written_and_read(loaded):
    pipeline = Pipeline()
    pipeline.add_component("answerer", SelfRAGAnswerer(model="m", settings={"beam": 1}))
    again = Pipeline.loads(
        pipeline.dumps(), allowed_modules=["selfrag.extensions.frameworks.haystack"]
    )
    assert again.get_component("answerer").settings == {"beam": 1}
    assert loaded == []


@pytest.mark.parametrize("setting", ["abstain", "write"])
def test_no_documents_are_said_and_nothing_is_invented(loaded, setting):
    """Field audit A1, in Haystack."""
    settings = {"mode": "always", "without_evidence": setting}
    [reply] = SelfRAGAnswerer(settings=settings).run("question 1", documents=[])[
        "answers"
    ]
    about = reply.meta["selfrag"]
    assert about["abstained"] == (setting == "abstain")
    assert about["without_evidence"] == (setting == "write")
    assert about["reason"] == "nothing found"
    assert reply.documents == []
    assert (reply.data == "I don't know the answer") == (setting == "abstain")


PACKAGES = {
    "haystack": "haystack",
    "langchain": "langchain_core",
    "llama_index": "llama_index.core",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_models_own_refusal_is_in_the_metadata(package, loaded, monkeypatch):
    pytest.importorskip(PACKAGES[package])
    tree = {"": "{~retrieve .1 .9 0}x", "[No Retrieval]": "I don't know.</s>"}
    rag = SelfRAG(PROMPTING, scripted({"Q": tree}))
    monkeypatch.setattr(SelfRAG, "from_pretrained", lambda *_, **__: rag)
    if package == "haystack":
        [reply] = SelfRAGAnswerer().run("Q")["answers"]
        about = reply.meta["selfrag"]
    elif package == "langchain":
        from selfrag.extensions.frameworks.langchain import ChatSelfRAG

        about = ChatSelfRAG(rag=rag).invoke("Q").response_metadata["selfrag"]
    else:
        from selfrag.extensions.frameworks.llama_index import SelfRAGQueryEngine

        about = SelfRAGQueryEngine(rag).query("Q").metadata["selfrag"]
    assert about["abstained"]
    assert about["reason"] == "the model refused"
