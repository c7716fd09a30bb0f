import pytest

from retrieval import FixedPassages, Passage, UserError, as_retriever

A, B, C = Passage("a", "text a"), Passage("b", "text b", "B"), Passage("c", "text c", score=0.5)


def test_fixed_passages_serve_every_query():
    retriever = FixedPassages([A, {"id": 7, "text": "t", "title": None}])
    assert retriever(["x", "y"], 1) == [[A], [A]]
    assert retriever(["x"], 5) == [[A, Passage("7", "t")]]
    assert retriever(["x"], 0) == [[]]
    assert FixedPassages([])(["x"], 5) == [[]]


def test_fixed_passages_per_query_follow_the_question_through_later_searches():
    retriever = FixedPassages({"Who?": [A], "Who? When": [B], "": []})
    assert retriever(["Who?", "Who? He came.", "Who? When it rained"], 5) == [[A], [A], [B]]
    with pytest.raises(UserError, match="no passages are given for the query 'Where"):
        FixedPassages({"Who?": [A]})(["Where?"], 5)


@pytest.mark.parametrize(
    ("passages", "fault"),
    [
        ([A, "text"], "passage 2 given is str"),
        ([{"body": "x"}], "has no id and no text"),
        ([{"id": "x", "text": "t", "score": "high"}], "score must be a number"),
        ([{"id": "x", "text": ["t"]}], "text must be text, not list"),
    ],
)
def test_what_is_no_passage_is_named(passages, fault):
    with pytest.raises(UserError, match=fault):
        FixedPassages(passages)


def test_any_callable_is_a_retriever():
    def search(queries, k):
        return tuple([{"id": query, "text": query.upper(), "score": 1}][:k] for query in queries)

    retriever = as_retriever(search)
    assert retriever(["x", "y"], 3) == [[Passage("x", "X", score=1.0)], [Passage("y", "Y", score=1.0)]]
    assert as_retriever(retriever) is retriever
    assert as_retriever([A, B])(["x"], 1) == [[A]]
    assert as_retriever({"x": [B]})(["x"], 1) == [[B]]
    with pytest.raises(UserError, match="a retriever is a callable"):
        as_retriever("directory")


async def coroutine(queries, k):
    return []


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    ("search", "fault"),
    [
        (lambda queries, k: None, "returned NoneType, not a list"),
        (lambda queries, k: [[A]], "returned 1 lists for 2 queries"),
        (lambda queries, k: [[A], [B, C, A]], "3 passages from retriever <lambda> for query 2; at most 2"),
        (lambda queries, k: [[], ["text"]], "passage 1 from retriever <lambda> for query 2 is str"),
        (coroutine, "retriever coroutine returned coroutine"),
    ],
)
def test_what_a_callable_may_not_return(search, fault):
    with pytest.raises(UserError, match=fault):
        as_retriever(search)(["x", "y"], 2)
