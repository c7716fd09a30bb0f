"""The client of search servers, and servers that answer something else."""

import json

import pytest
from loopback import Answering, loopback
from random_model import random_search
from refusals import refused

from selfrag.extensions.web.search import RemoteRetriever
from selfrag.loading import load_retriever

WITHOUT = b'{"result": [[{"document": 3}]], "results": {"IDs": [[1]], "passages": [[3]], "scores": [[1]]}}'
FIND = random_search(0)


QUERIES = [f"query {number}" for number in range(8)]


@pytest.mark.parametrize("path", ["retrieve", "search"])
def test_the_client_finds_what_the_server_finds(serve, path):
    retriever = load_retriever(f"{serve().url}/{path}", demo=False)
    assert retriever(QUERIES, 3) == [FIND(query)[:3] for query in QUERIES]
    assert (retriever([], 3), retriever(["a"], 0)) == ([], [[]])


@pytest.fixture
def answering(request):
    """Starts a server that always answers the same, and gives its address."""

    def start(content, status=200):
        class Handler(Answering):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(status, content)

        server = loopback(Handler)
        request.addfinalizer(server.stop)
        return server.url

    return start


@pytest.mark.parametrize("path", ["retrieve", "search"])
@pytest.mark.parametrize(
    "content, status, said",
    [
        (b"", 200, "did not answer in JSON"),
        (b"[" * 100_000, 200, "did not answer in JSON"),
        (b"[]", 200, "answered list, not an object"),
        (
            b'{"result": [], "results": {"IDs": [], "passages": [], "scores": []}}',
            200,
            "did not answer with a list",
        ),
        (WITHOUT, 200, "a passage without contents"),
        (b"<h1>no</h1>", 500, "answered 500: <h1>no</h1>"),
    ],
)
def test_what_a_server_may_answer_instead(answering, path, content, status, said):
    with refused(said):
        RemoteRetriever(f"{answering(content, status)}/{path}")(["a"], 1)


HITS = [
    {"_id": "d1", "_score": 2.5, "_source": {"title": "Faust", "text": "By Goethe."}},
    {"_id": "d2", "_score": None, "_source": {"text": "A city."}},
]


def test_elasticsearch_is_searched_by_elser(request):
    """Intrinsics, 2.2: the field and the inference endpoint stand in the address."""
    requests = []

    class Handler(Answering):
        def do_POST(self):
            requests.append(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps({"hits": {"hits": HITS}}).encode()
            self.answer(200 if self.path == "/clapnq/_search" else 404, content)

    server = loopback(Handler)
    request.addfinalizer(server.stop)
    search = load_retriever(f"{server.url}/clapnq/_search?field=v&model=e", demo=False)
    first, second = search(["who", "where"], 2)
    assert [(p.id, p.title, p.text, p.score) for p in first] == [
        ("d1", "Faust", "By Goethe.", 2.5),
        ("d2", "", "A city.", None),
    ]
    assert len(second) == 2
    query = {"sparse_vector": {"field": "v", "inference_id": "e", "query": "who"}}
    assert json.loads(requests[0]) == {"query": query, "size": 2}


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
        RemoteRetriever(f"{answering(content)}/i/_search")(["a"], 1)


def test_addresses(answering):
    for url in ("ftp://a/retrieve", "http://", "http://127.0.0.1:9/nothing"):
        with refused():
            RemoteRetriever(url)
    with refused("cannot be searched") as caught:
        RemoteRetriever("http://user:secret@127.0.0.1:9/retrieve")(["a"], 1)
    assert "secret" not in str(caught.value)
    untitled = json.dumps({"result": [[{"contents": "no title at all"}]]}).encode()
    [[passage]] = RemoteRetriever(f"{answering(untitled)}/retrieve")(["a"], 1)
    assert (passage.id, passage.title, passage.text, passage.score) == (
        "no title at all",
        "",
        "no title at all",
        None,
    )
