"""Search by vectors, by words and by both ways; reranked, joined, and among passages that a caller gives."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from retrieval import (
    DenseRetriever,
    FixedPassages,
    HybridRetriever,
    Passage,
    WordRetriever,
    as_retriever,
    index_passages,
    open_index,
)
from retrieval.build import compact_index
from retrieval.combining import RerankedRetriever
from retrieval.corpus_writing import build_corpus
from retrieval.encoders import Template
from retrieval.index import load_manifest
from retrieval.search import Fusion
from retrieval.vectors import FlatIndex, VectorHits
from retrieval.word_writing import add_words
from retrieval.words import LANGUAGES, WordIndex


@pytest.fixture
def retriever(animals, encoder):
    hits = index_passages(animals, "index", encoder=encoder)
    encoder.texts.clear()
    return hits


QUERIES = "honey from flowers|dog barks at mail|the|mice in the forest|nothing known"


def test_the_passage_that_shares_the_words_comes_first_and_a_batch_equals_its_queries_alone(
    retriever, animals
):
    queries = [*QUERIES.split("|"), ""] * 20
    hits = retriever(queries, 3)
    bee, dog, *_ = [passages[0] for passages in hits]
    assert bee.with_score(None) == animals[3]
    assert dog.id == "dog"
    assert all(passages[0].score >= passages[1].score for passages in hits)
    assert hits == [retriever([query], 3)[0] for query in queries]


@pytest.mark.parametrize("k", [1, 5, 10**30])
def test_official_38_a_search_of_many_queries_is_one_call_and_equal_ones_are_encoded_once(
    retriever, encoder, k
):
    encoder.calls = 0
    hits = retriever(["honey", "dog", "honey"] * 20, k)
    assert list(map(len, hits)) == [min(k, 5)] * 60  # k is an upper bound
    assert encoder.texts == ["honey", "dog"]
    assert encoder.calls == 1
    assert retriever([], k) == []
    assert retriever(["honey"], 0) == [[]]


@pytest.mark.parametrize("queries", ["honey", [None], None, 5])
def test_wrong_queries_are_named(retriever, queries):
    with refused("queries must be a list of texts"):
        retriever(queries, 3)


@pytest.mark.parametrize("k", [-1, -(10**400), 2.0, "3", None, True])
def test_wrong_numbers_of_passages_are_named(retriever, animals, k):
    for search in (retriever, FixedPassages(animals)):
        with refused("k="):
            search(["honey"], k)


def test_d19_passages_with_the_same_text_count_once(encoder, animals):
    text = "Bees make honey  from the\nnectar of flowers."
    copies = [Passage(f"copy{n}", text, "Bee") for n in range(40)]
    retriever = index_passages([*copies, *animals], "i", encoder=encoder)
    bees, dogs = retriever(
        ["Bee Bees make honey from the nectar of flowers.", "dog"], 5
    )
    assert bees[0].id == "copy0"
    for passages in (bees, dogs):
        assert len({" ".join(p.text.split()) for p in passages}) == len(passages) == 5


def test_sixteen_threads_open_and_search_at_once(tiny_bert, animals):
    """A real encoder and its tokenizer, shared by all threads and opened by each: every answer is that of one call."""
    shared = index_passages(animals, "index", encoder=tiny_bert)
    words = ["honey ", "mail ", "mice ", "leaves ", "mat "]
    queries = [words[n % 5] * (1 + n % 23) for n in range(64)]
    expected = [shared([query], 3)[0] for query in queries]

    def search(number):
        retriever = open_index("index") if number % 16 == 0 else shared
        return retriever([queries[number], queries[-1 - number]], 3)

    def check(hits, alone):
        assert [passage.id for passage in hits] == [passage.id for passage in alone]
        scores = [passage.score for passage in alone]
        assert [passage.score for passage in hits] == pytest.approx(scores, abs=1e-4)

    with ThreadPoolExecutor(16) as pool:
        for number, (first, second) in enumerate(pool.map(search, range(64))):
            check(first, expected[number])
            check(second, expected[-1 - number])


def test_the_template_reaches_passages_and_queries(encoder):
    template = Template("passage: {title} | {text}", "query: {query}")
    passages = [Passage("a", "{text} {x}", "T{}")]
    retriever = index_passages(passages, "i", encoder=encoder, template=template)
    retriever(["q{query}"], 1)
    assert encoder.texts == ["passage: T{} | {text} {x}", "query: q{query}"]
    # as Contriever was trained
    assert Template().of_passage(Passage("a", "text", "Title")) == "Title text"
    for wrong in ("{title}", "{text} {body}", "{text"):
        with refused("template"):
            Template(passage=wrong)


def test_without_faiss_the_results_are_the_same(retriever, encoder, monkeypatch):
    expected = retriever(["honey", "dog mail"], 4)
    monkeypatch.setattr("retrieval.vectors.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "faiss", None)  # an import of faiss now fails
    assert open_index("index", encoder)(["honey", "dog mail"], 4) == expected
    with refused(r"faiss is not installed; run: .*cpu"):
        FlatIndex(np.zeros((2, 2), np.float32), "faiss")


class Approximate:
    """An index that finds only the first of its rows, and says -1 for the others."""

    dim = 32

    def __init__(self, rows, size):
        self.rows, self.size, self.asked = rows, size, []

    def __len__(self):
        return self.size

    def all_finite(self):
        return True

    def search(self, queries, k, allowed=None):
        self.asked.append(k)
        hits = np.full((len(queries), k), -1, np.int64)
        hits[:, : len(self.rows)] = self.rows[:k]
        return VectorHits(np.linspace([1], [0], k, dtype=np.float32, axis=1), hits)


def test_what_an_approximate_index_finds_is_cited_only_where_it_found_something(
    animals, encoder
):
    """-1 is no row; and where texts repeat, the search for others is bounded."""
    few = Approximate([3, 0], size=5)
    retriever = DenseRetriever(build_corpus(animals, "c"), few, encoder)
    assert [p.id for p in retriever(["honey"], 4)[0]] == ["bee", "cat"]
    assert len(few.asked) == 1  # it has no more: asking again finds nothing
    same = (Passage(f"copy{n}", "the same text") for n in range(5000))
    copies = build_corpus(same, "copies")
    index = Approximate(range(5000), size=5000)
    [[passage]] = DenseRetriever(copies, index, encoder)(["text"], 2)
    assert passage.id == "copy0"
    assert max(index.asked) == 256 * (2 + 8)
    assert len(index.asked) <= 6


def by_words(index, query, k=9):
    return [passage.id for passage in open_index(index, mode="words")([query], k)[0]]


@pytest.mark.parametrize(
    "query, hits",
    [
        ("barking", {"dog"}),
        ("the owl and the bee", {"owl", "bee"}),
        ("the of zebra", set()),
        # a query holds no syntax
        ("body:honey OR *", {"bee"}),
        ("+honey -bees ^5", {"bee"}),
        ("row:0", set()),
        ("\\", set()),
        ("\ud800", set()),
    ],
)
def test_stems_and_titles_are_found_and_no_encoder_is_needed(index, query, hits):
    assert set(by_words(index, query)) == hits


def test_the_default_is_both_and_a_mode_can_be_named(index, encoder):
    for mode, kind in (
        (None, HybridRetriever),
        ("hybrid", HybridRetriever),
        ("dense", DenseRetriever),
        ("words", WordRetriever),
    ):
        assert type(open_index(index, encoder, mode=mode)) is kind
    with refused("mode='both'"):
        open_index(index, encoder, mode="both")
    with refused("language='klingon'"):
        compact_index(index, language="klingon")
    hits = open_index(index, encoder)(["honey from flowers", "nothing known"], 5)
    assert [len(passages) for passages in hits] == [5, 5]
    assert hits[0][0].id == "bee"
    assert hits[0][0].score == 1.0


def test_an_index_without_words_says_how_to_get_them(tmp_path, animals, encoder):
    index_passages(animals, "i", encoder=encoder, language="none")
    assert type(open_index("i", encoder)) is DenseRetriever
    with refused(r"selfrag index compact .* --language auto"):
        open_index("i", encoder, mode="words")
    encoder.texts.clear()
    compact_index("i", language="english")
    assert by_words("i", "honey") == ["bee"]
    compact_index("i", language="none")
    assert load_manifest("i").part("words") is None
    assert not list((tmp_path / "i" / "parts").glob("*"))
    assert encoder.texts == []


@pytest.mark.parametrize("share", [0.9, 0.001, 0.0])
def test_a_filter_of_words_is_exact(share, monkeypatch):
    monkeypatch.setattr("retrieval.words._LISTED_ROWS", 100)
    passages = [
        Passage(str(n), "honey " * (n % 5) + "bee " * (n % 3) + f" and more {n}")
        for n in range(2000)
    ]
    add_words(Path("w"), passages, 0, "english")
    words = WordIndex(Path("w"), "english")
    allowed = np.random.default_rng(0).random(2000) < share
    every = words.search("honey bees", 2000).rows[0]
    hits = words.search("honey bees", 10, allowed).rows[0]
    np.testing.assert_array_equal(hits, every[allowed[every]][:10])


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_its_stems(language):
    add_words(Path("w"), [Passage("a", "2024 honey")], 0, language)
    assert WordIndex(Path("w"), language).search("2024", 5).rows.tolist() == [[0]]


FIRST, SECOND = [(3, 9.0), (1, 5.0), (2, 1.0)], [(2, 4.0), (3, 2.0)]
LATER = [(1, 4.0), (4, 2.0)]


@pytest.mark.parametrize(
    "fusion, first, second, keys, scores",
    [
        # scores scaled to 0..1, equal ones by row
        (Fusion(), FIRST, SECOND, [2, 3, 1], [0.5, 0.5, 0.25]),
        (Fusion(weight=1.0), FIRST, SECOND, [3, 1, 2], [1.0, 0.5, 0.0]),
        (Fusion(), [], [], [], []),
        (Fusion(), [("b", 7.0)], [("a", 7.0)], ["a", "b"], [0.5, 0.5]),
        (Fusion("rrf"), FIRST[:2], LATER, [1, 3, 4], [13 / 84, 1 / 12, 1 / 14]),
    ],
)
def test_fusion_of_two_rankings(fusion, first, second, keys, scores):
    hits = fusion(first, second, 3)
    assert [key for key, _ in hits] == keys
    assert [score for _, score in hits] == pytest.approx(scores)


A = Passage("a", "text a")
B = Passage("b", "text b", "B")


def test_fixed_passages_serve_every_query_or_follow_their_question_through_later_searches():
    retriever = FixedPassages([A, {"id": 7, "text": "t", "title": None}])
    assert retriever(["x", "y"], 1) == [[A], [A]]
    assert retriever(["x"], 5) == [[A, Passage("7", "t")]]
    assert retriever(["x"], 0) == FixedPassages([])(["x"], 5) == [[]]
    retriever = FixedPassages({"Who?": [A], "Who? When": [B], "": []})
    hits = retriever(["Who?", "Who? He came.", "Who? When it rained"], 5)
    assert hits == [[A], [A], [B]]
    with refused("'Where"):
        FixedPassages({"Who?": [A]})(["Where?"], 5)


@pytest.mark.parametrize(
    "passages, fault",
    [
        ([A, "text"], "passage 2 given is str"),
        ([{"body": "x"}], "has no id and no text"),
        ([{"id": "x", "text": "t", "score": "high"}], "score must be a number"),
        ([{"id": "x", "text": ["t"]}], "text must be text, not list"),
    ],
)
def test_what_is_no_passage_is_named(passages, fault):
    with refused(fault):
        FixedPassages(passages)


def test_any_callable_is_a_retriever():
    def search(queries, k):
        return tuple([{"id": "x", "text": query, "score": 1}][:k] for query in queries)

    retriever = as_retriever(search)
    hit = Passage("x", "X", score=1.0)
    assert retriever(["X", "X"], 3) == [[hit], [hit]]
    assert as_retriever(retriever) is retriever
    assert as_retriever([A, B])(["x"], 1) == [[A]]
    assert as_retriever({"x": [B]})(["x"], 1) == [[B]]
    with refused("a retriever is a callable"):
        as_retriever("directory")


async def coroutine(queries, k):
    return []


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    "search, fault",
    [
        (lambda queries, k: None, "returned NoneType, not a list"),
        (lambda queries, k: [[A]], "returned 1 lists for 2 queries"),
        (lambda queries, k: [[A], [B, B, A]], "3 passages .* query 2; at most 2"),
        (lambda queries, k: [[], ["text"]], "passage 1 .*<lambda> for query 2 is str"),
        (coroutine, "retriever coroutine returned coroutine"),
    ],
)
def test_what_a_callable_may_not_return(search, fault):
    with refused(fault):
        as_retriever(search)(["x", "y"], 2)


ABCD = [Passage(name, f"text {name}", score=9) for name in "abcd"]
SCORES = {"a": 0.0, "b": 0.2, "c": 1.0, "d": 0.4}


def searched(queries, k):
    return [ABCD[:k] if query else [] for query in queries]


def by_name(queries, passages):
    return [[SCORES[passage.id] for passage in hits] for hits in passages]


@pytest.mark.parametrize(
    "k, depth, weight, order, best",
    [
        (4, 4, 1.0, "cdba", 1.0),
        (4, 4, 0.5, "cabd", 0.5 * 1 + 0.5 * 0.5),
        (4, 4, 0.0, "abcd", 1.0),
        (1, 4, 1.0, "c", 1.0),  # a passage below k can come up
        (1, 2, 1.0, "b", 0.2),  # but not one below the depth
        (3, 1, 1.0, "cba", 1.0),  # all k are scored
    ],
)
def test_scores_and_ranks_are_mixed(k, depth, weight, order, best):
    reranked = RerankedRetriever(searched, by_name, depth=depth, weight=weight)
    hits, nothing = reranked(["q", ""], k)
    assert "".join(passage.id for passage in hits) == order
    assert nothing == []
    scores = [passage.score for passage in hits]
    assert scores[0] == pytest.approx(best)
    assert scores == sorted(scores, reverse=True)


def test_equal_scores_keep_their_order_and_nothing_found_asks_nobody():
    def same(queries, passages):
        assert any(passages)
        return [np.zeros(len(hits), np.float32) for hits in passages]

    reranked = RerankedRetriever(ABCD, same, weight=1.0)
    assert [passage.id for passage in reranked(["q"], 3)[0]] == ["a", "b", "c"]
    assert RerankedRetriever(searched, same)([""], 3) == [[]]
    assert reranked(["q"], 0) == [[]]


@pytest.mark.parametrize(
    "scores, message",
    [
        (None, "no list of scores for each of 1 query"),
        ([[1.0]], "no list of 4 scores"),
        ([[0.1, 0.2, 0.3, math.nan]], "gave nan; a score is a finite number"),
        ([[0.1, 0.2, 0.3, 7.5]], "gave 7.5; with weight=0.5 a score is from 0 to 1"),
    ],
)
def test_scores_that_fit_nothing_are_named(scores, message):
    with refused(message):
        RerankedRetriever(searched, lambda queries, passages: scores)(["q"], 2)


@pytest.mark.parametrize("given", [{"depth": 0}, {"weight": 2}, {"scorer": "isrel"}])
def test_settings_of_reranking_that_fit_nothing_are_named(given):
    with refused(next(iter(given))):
        RerankedRetriever(searched, **{"scorer": by_name} | given)


@pytest.mark.parametrize(
    "given", [{"method": "sum"}, {"weight": -1}, {"weight": math.nan}]
)
def test_settings_of_fusion_that_fit_nothing_are_named(given):
    with refused(r"weight=|fusion="):
        Fusion(**given)
