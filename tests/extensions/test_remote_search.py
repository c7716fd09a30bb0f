"""The client of search servers, and servers that answer something else."""

import json

import pytest
from loopback import Answering, loopback
from random_model import random_search
from refusals import refused

from retrieval.passage import Passage
from selfrag.extensions.web.search import RemoteRetriever
from selfrag.loading import load_retriever

WITHOUT = b'{"result": [[{"document": 3}]], "results": {"IDs": [[1]], "passages": [[3]], "scores": [[1]]}}'
FIND = random_search(0)


QUERIES = [f"query {number}" for number in range(8)]


@pytest.mark.parametrize("path", ["retrieve", "search"])
def test_the_client_finds_what_the_server_finds(serve, path):
    retriever = load_retriever(f"{serve().url}/{path}", demo=False)
    assert retriever(QUERIES, 3) == [FIND(query)[:3] for query in QUERIES]
    assert retriever([], 3) == []
    assert retriever(["a"], 0) == [[]]


@pytest.fixture
def answering(request):
    """Starts a server that always answers the same, and gives its address and what it was sent."""
    requests = []

    def start(content):
        class Handler(Answering):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.path, body.decode()))
                self.answer(500 if content.startswith(b"<") else 200, content)

        server = loopback(Handler)
        request.addfinalizer(server.stop)
        return server.url, requests

    return start


@pytest.mark.parametrize("path", ["retrieve", "search"])
@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "did not answer in JSON"),
        (b"[" * 100_000, "did not answer in JSON"),
        (b"[]", "answered list, not an object"),
        (
            b'{"result": [], "results": {"IDs": [], "passages": [], "scores": []}}',
            "did not answer with a list",
        ),
        (WITHOUT, "a passage without contents"),
        (b"<h1>no</h1>", "answered 500: <h1>no</h1>"),
    ],
)
def test_what_a_server_may_answer_instead(answering, path, content, said):
    url, _ = answering(content)
    with refused(said):
        RemoteRetriever(f"{url}/{path}")(["a"], 1)


HITS = b"""{"hits": {"hits": [
{"_id": "d1", "_score": 2.5, "_source": {"title": "Faust", "text": "By Goethe."}},
{"_id": "d2", "_score": null, "_source": {"text": "A city."}}]}}"""


def test_elasticsearch_is_searched_by_elser(answering):
    """Intrinsics, 2.2: the field and the inference endpoint stand in the address."""
    url, requests = answering(HITS)
    search = load_retriever(f"{url}/clapnq/_search?field=v&model=e", demo=False)
    expected = [
        Passage("d1", "By Goethe.", "Faust", score=2.5),
        Passage("d2", "A city."),
    ]
    assert search(["who", "where"], 2) == [expected, expected]
    path, body = requests[0]
    assert path == "/clapnq/_search"
    query = {"sparse_vector": {"field": "v", "inference_id": "e", "query": "who"}}
    assert json.loads(body) == {"query": query, "size": 2}


@pytest.mark.parametrize(
    "content, said",
    [
        (b"[]", "answered list"),
        (b'{"hits": 3}', "no list of hits"),
        (b'{"hits": {"hits": [{"_source": {}}]}}', "a hit without a text"),
    ],
)
def test_what_elasticsearch_may_answer_instead(answering, content, said):
    with refused(said):
        RemoteRetriever(f"{answering(content)[0]}/i/_search")(["a"], 1)


def test_addresses(answering):
    for url in ("ftp://a/retrieve", "http://", "http://127.0.0.1:9/nothing"):
        with refused():
            RemoteRetriever(url)
    with refused("cannot be searched") as caught:
        RemoteRetriever("http://user:secret@127.0.0.1:9/retrieve")(["a"], 1)
    assert "secret" not in str(caught.value)
    url, _ = answering(b'{"result": [[{"contents": "no title at all"}]]}')
    [[passage]] = RemoteRetriever(f"{url}/retrieve")(["a"], 1)
    assert passage == Passage("no title at all", "no title at all")
    assert passage.score is None
