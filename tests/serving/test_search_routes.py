"""`/retrieve` and `/search`, and the client of both."""

from random_model import random_search

FIND = random_search(0)
QUERIES = [f"query {number}" for number in range(8)]


def contents(query, k):
    return [f'"{p.title}"\n{p.text}' for p in FIND(query)[:k]]


def test_search_r1_and_massive_serve_get_their_shapes(serve):
    post = serve().client.post
    found = post(
        "/retrieve", json={"queries": QUERIES, "topk": 2, "return_scores": True}
    ).json()["result"]
    for query, passages in zip(QUERIES, found, strict=True):
        assert [one["document"]["contents"] for one in passages] == contents(query, 2)
        assert [one["score"] for one in passages] == [p.score for p in FIND(query)[:2]]
    bare = post("/retrieve", json={"queries": QUERIES}).json()["result"]
    assert [[one["contents"] for one in passages] for passages in bare] == [
        contents(query, 5) for query in QUERIES
    ]
    query = next(query for query in QUERIES if len(FIND(query)) >= 2)
    reply = post(
        "/search", json={"query": query, "n_docs": 2, "domains": "anything"}
    ).json()
    ids = [p.id for p in FIND(query)[:2]]
    results = {"IDs": [ids], "passages": [contents(query, 2)], "scores": [[1.0, 1.0]]}
    assert reply == {"query": query, "n_docs": 2, "results": results}
