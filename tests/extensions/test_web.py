"""Web search against a server on this machine, and retrievers joined."""

import threading
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from loopback import Answering, loopback
from refusals import refused

from retrieval.combining import join
from retrieval.passage import Passage
from selfrag.extensions.web.search import WebRetriever
from selfrag.loading import load_retriever

HTML = (
    "<html><head><title>Curie</title><script>alert(1)</script></head><body><nav>Menu</nav>"
    "<p>Marie Curie was a physicist. She was born in Warsaw.</p><h2>Prizes</h2><p>She won two.</p></body></html>"
)


class Handler(Answering):
    """A SearXNG, a Google and the pages that they find."""

    def do_GET(self):
        place, fields = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        self.server.asked.append((place.path, fields))
        pages = [
            (f"{self.server.url}/{name}", f"T {name}", f"Snippet {name}.")
            for name in PAGES
        ]
        if place.path == "/search":
            pages.append(("file:///etc/passwd", "", "no"))
            results = [
                dict(zip(("url", "title", "content"), page, strict=True))
                for page in pages
            ]
            self.answer(200, {"results": results})
        elif place.path == "/google":
            items = [
                dict(zip(("link", "title", "snippet"), page, strict=True))
                for page in pages
            ]
            self.answer(200, {"items": items[: int(fields["num"][0])]})
        elif place.path in ("/moved", "/loop"):
            self.answer(302, b"", Location=place.path.replace("moved", "html"))
        else:
            status, kind, content = CONTENT.get(
                place.path, (404, "text/html", b"no such page")
            )
            self.answer(status, content, Content_Type=kind)


PAGES = ("html", "moved", "gone", "zip", "html", "empty", "loop")
CONTENT = {
    "/html": (200, "text/html; charset=utf-8", HTML.encode()),
    "/zip": (200, "application/zip", b"PK"),
    "/empty": (200, "text/html", b""),
    "/broken/search": (200, "text/html", b"<html>"),
}


@pytest.fixture
def web():
    server = loopback(Handler)
    server.asked = []
    yield server
    server.stop()


def test_pages_that_searxng_finds_become_passages(web):
    search = WebRetriever(f"searxng:{web.url}", private=True)
    [passages] = search(["Who was Curie?"], 9)
    told = [f"{p.id.rpartition('/')[2]}: {p.title}: {p.text}" for p in passages]
    assert told == [
        "html#1: Curie: Marie Curie was a physicist. She was born in Warsaw.",
        "moved#1: Curie: Marie Curie was a physicist. She was born in Warsaw.",
        "gone: T gone: Snippet gone.",  # what cannot be read leaves its snippet
        "zip: T zip: Snippet zip.",
        "empty: T empty: Snippet empty.",
        "loop: T loop: Snippet loop.",
    ]
    reasons = [passage.metadata.get("unread") for passage in passages]
    assert reasons[:2] == [None, None]
    assert reasons[2] == f"{web.url}/gone: it gives no page"
    assert reasons[4] == f"{web.url}/empty: the file is empty"
    assert reasons[5] == f"{web.url}/loop: too many redirects"
    assert search.unread == {"unreadable": 4}
    assert web.asked[0] == ("/search", {"q": ["Who was Curie?"], "format": ["json"]})
    search = WebRetriever(f"searxng:{web.url}", private=True, per_page=2)
    [[first, second]] = search(["?"], 2)
    assert first.text == passages[0].text
    assert (second.title, second.text) == ("Prizes", "She won two.")


@pytest.mark.parametrize("step", ["fetching", "reading", "cutting"])
def test_the_time_limit_covers_fetching_reading_and_cutting(
    web, monkeypatch, caplog, step
):
    """The limit of 3 s covered the fetch alone; a first small page took 28 to 45 s on a loaded machine."""
    ended = threading.Event()

    def late(*_, **__):
        ended.wait(20)
        raise OSError

    search = WebRetriever(f"searxng:{web.url}", private=True, timeout=0.5)
    if step == "fetching":
        monkeypatch.setattr("selfrag.extensions.web.search._fetched", late)
    elif step == "reading":
        monkeypatch.setattr(search._reader, "read", late)
    else:
        monkeypatch.setattr("selfrag.extensions.web.search.sentence_finder", late)
    started = time.monotonic()
    [passages] = search(["Who was Curie?"], 2)
    assert time.monotonic() - started < 5
    ended.set()
    assert [passage.text for passage in passages] == ["Snippet html.", "Snippet moved."]
    for passage in passages:
        assert passage.metadata == {"unread": "not ready within 0.5 s"}
    assert search.unread == {"slow": 2}
    assert "2 of 2 pages left their snippets; the first: not ready" in caplog.text


def test_google_is_asked_with_the_users_key(web, monkeypatch):
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with refused("GOOGLE_API_KEY"):
        WebRetriever("google:cx")
    monkeypatch.setenv("GOOGLE_API_KEY", "secret")
    search = WebRetriever("google:cx", google=f"{web.url}/google", pages=False)
    for query in "ab":
        [passages] = search([query], 2)
        assert " ".join(p.text for p in passages) == "Snippet html. Snippet moved."
        asked = {"cx": ["cx"], "q": [query], "num": ["2"]}
        assert web.asked.pop() == ("/google", asked)
    with refused("answered 404") as caught:
        WebRetriever("google:cx", google=f"{web.url}/nowhere")(["a"], 1)
    assert "secret" not in str(caught.value)


def test_a_server_that_answers_something_else_is_one_line(web):
    with refused("SearXNG needs json"):
        WebRetriever(f"searxng:{web.url}/broken")(["?"], 1)
    with refused("cannot be searched: ConnectError"):
        WebRetriever("searxng:http://127.0.0.1:9")(["?"], 1)
    with refused("is no web search; give searxng:URL"):
        WebRetriever("bing:x")
    with refused("is not a web address"):
        WebRetriever("searxng:ftp://x")


A = [Passage(f"a{n}", f"A {n}.") for n in range(4)]
B = [Passage("b0", "A 1."), Passage("b1", "B 1.")]


def test_joined_retrievers_take_turns():
    joined = join(A, lambda queries, k: [B[:k] for _ in queries])
    first, second = joined(["q", "r"], 5)
    assert first == second == [A[0], B[0], B[1], A[2], A[3]]
    assert joined(["q"], 2)[0] == first[:2]
    assert joined(["q"], 0) == [[]]
    with refused("1 retriever to join"):
        join(A)


def test_names_joined_by_a_comma_are_one_retriever(web):
    both = load_retriever(f"searxng:{web.url},searxng:{web.url}/broken", demo=False)
    assert len(both.retrievers) == 2
    with refused("did not answer in JSON"):
        both(["?"], 1)
