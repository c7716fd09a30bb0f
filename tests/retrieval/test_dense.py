import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retrieval import FixedPassages, Passage, UserError, index_passages, open_index
from retrieval.encoders import Template
from retrieval.vectors import FlatIndex


@pytest.fixture
def retriever(tmp_path, animals, encoder):
    found = index_passages(animals, tmp_path / "index", encoder=encoder)
    encoder.texts.clear()
    return found


def test_the_passage_that_shares_the_words_comes_first(retriever, animals):
    found = retriever(["honey from flowers", "dog barks at mail"], 2)
    assert [next(p.id for p in passages) for passages in found] == ["bee", "dog"]
    assert [len(passages) for passages in found] == [2, 2]
    assert all(passages[0].score >= passages[1].score for passages in found)
    assert found[0][0].with_score(None) == animals[3]


def test_a_batch_equals_its_queries_alone(retriever):
    queries = ["honey", "mail carrier", "the", "mice in the forest", "nothing known", ""] * 20
    together = retriever(queries, 3)
    assert together == [retriever([query], 3)[0] for query in queries]


@pytest.mark.parametrize("k", [1, 5, 10**30])
def test_official_38_a_search_of_many_queries_is_one_call_and_equal_ones_are_encoded_once(retriever, encoder, k):
    encoder.calls = 0
    found = retriever(["honey", "dog", "honey"] * 20, k)
    assert [len(passages) for passages in found] == [min(k, 5)] * 60  # k is an upper bound
    assert (encoder.texts, encoder.calls) == (["honey", "dog"], 1)
    assert (retriever([], k), retriever(["honey"], 0)) == ([], [[]])


@pytest.mark.parametrize(
    ("queries", "k", "fault"),
    [
        *((queries, 3, "queries must be a list of texts") for queries in ("honey", [None], None, 5)),
        *((["honey"], k, "k=") for k in (-1, -(10**400), 2.0, "3", None, True)),
    ],
)
def test_wrong_calls_are_named(retriever, animals, queries, k, fault):
    with pytest.raises(UserError, match=fault):
        retriever(queries, k)
    if fault == "k=":
        with pytest.raises(UserError, match=fault):
            FixedPassages(animals)(queries, k)


def test_passages_with_the_same_text_count_once(tmp_path, encoder, animals):
    copies = [Passage(f"copy{n}", "Bees make honey  from the\nnectar of flowers.", "Bee") for n in range(40)]
    retriever = index_passages([*copies, *animals], tmp_path / "i", encoder=encoder)
    found = retriever(["Bee Bees make honey from the nectar of flowers.", "dog"], 5)
    assert next(p.id for p in found[0]) == "copy0"
    assert all(len({" ".join(p.text.split()) for p in passages}) == len(passages) == 5 for passages in found)


def test_sixteen_threads_open_and_search_at_once(tmp_path, tiny_bert, animals):
    """A real encoder and its tokenizer, shared by all threads and opened by each: every answer is that of one call."""
    shared = index_passages(animals, tmp_path / "index", encoder=tiny_bert)
    queries = [f"{['honey', 'mail', 'mice', 'leaves', 'mat'][n % 5]} " * (1 + n % 23) for n in range(64)]
    expected = [shared([query], 3)[0] for query in queries]

    def search(number):
        retriever = open_index(tmp_path / "index") if number % 16 == 0 else shared
        return retriever([queries[number], queries[-1 - number]], 3)

    with ThreadPoolExecutor(16) as pool:
        for number, (first, second) in enumerate(pool.map(search, range(64))):
            for found, alone in ((first, expected[number]), (second, expected[-1 - number])):
                assert [passage.id for passage in found] == [passage.id for passage in alone]
                assert [p.score for p in found] == pytest.approx([p.score for p in alone], abs=1e-4)


def test_the_template_reaches_passages_and_queries(tmp_path, encoder):
    template = Template("passage: {title} | {text}", "query: {query}")
    retriever = index_passages([Passage("a", "{text} {x}", "T{}")], tmp_path / "i", encoder=encoder, template=template)
    retriever(["q{query}"], 1)
    assert encoder.texts == ["passage: T{} | {text} {x}", "query: q{query}"]
    assert Template().of_passage(Passage("a", "text")) == "text"
    assert Template().of_passage(Passage("a", "text", "Title")) == "Title text"  # as Contriever was trained


@pytest.mark.parametrize("template", ["{title}", "{text} {body}", "{text"])
def test_a_wrong_template_is_named(template):
    with pytest.raises(UserError, match="template"):
        Template(passage=template)


def test_without_faiss_the_results_are_the_same(retriever, tmp_path, encoder, monkeypatch):
    expected = retriever(["honey", "dog mail"], 4)
    real = importlib.util.find_spec
    monkeypatch.setattr("retrieval.vectors.find_spec", lambda name: None if name == "faiss" else real(name))
    monkeypatch.setitem(sys.modules, "faiss", None)  # an import of faiss now fails
    assert open_index(tmp_path / "index", encoder)(["honey", "dog mail"], 4) == expected
    with pytest.raises(UserError, match=r"faiss is not installed; run: .*cpu"):
        FlatIndex(np.zeros((2, 2), np.float32), "faiss")
