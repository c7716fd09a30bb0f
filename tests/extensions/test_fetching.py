"""What is fetched is bounded in time and size and comes from public addresses; keys stand in no log line."""

import asyncio
import base64
import gzip
import json
import logging
import socket
import time
import zlib
from contextlib import closing, suppress

import httpcore
import httpx
import pytest
from loopback import Answering, loopback
from refusals import refused

from critic.cases import Case
from critic.teacher.endpoint import EndpointTeacher, TeacherConfig
from retrieval.content import Content
from selfrag.common.errors import UserError
from selfrag.engines.client import Client, json_of
from selfrag.engines.http import HTTPConfig, HTTPEngine
from selfrag.engines.server_config import ServerConfig
from selfrag.extensions.web.fetching import BoundedTransport, is_public_address
from selfrag.extensions.web.search import RemoteRetriever, WebRetriever
from selfrag.intrinsics.catalog import find
from selfrag.intrinsics.model_library import Library
from selfrag.intrinsics.named import chat_model as executor_of
from selfrag.reflection.inputs import JudgeInput, Message

BOMB = gzip.compress(bytes(64 << 20), 1)


class Handler(Answering):
    """Answers slowly, packed, or elsewhere, by the path."""

    def do_GET(self):
        self.server.headers.append(dict(self.headers))
        place = self.path.partition("?")[0].rpartition("/")[2]
        if place == "search":
            pages = [
                json.loads(RESULT.replace("NAME", name).replace("URL", self.server.url))
                for name in PAGES
            ]
            self.answer(200, {"results": pages, "result": [[]], "items": []})
        elif place in ("slow-head", "slow-body"):
            self.drip(b"Content-Type: text/html\r\n" + b"\r\n" * (place == "slow-body"))
        elif place == "loop":
            self.answer(302, b"", Location="/loop")
        else:
            content, encoding = PACKED[place]
            self.answer(
                200, content, Content_Type="text/html", Content_Encoding=encoding
            )

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def drip(self, head):
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + head)
            for _ in range(400):
                self.wfile.write(b"X")
                time.sleep(0.05)


RESULT = '{"url": "URL/NAME", "title": "NAME", "content": "Snippet NAME."}'
PACKED = {
    "bomb": (BOMB, "gzip"),
    "nested": (gzip.compress(BOMB), "gzip, gzip"),
    "deflate": (zlib.compress(bytes(64 << 20)), "deflate"),
    "brotli": (b"\x1b", "br"),
    "zstd": (b"(\xb5/\xfd", "zstd"),
    "broken": (b"no gzip", "gzip"),
    "honest": (gzip.compress(b"<p>Curie was a physicist.</p>"), "gzip"),
}
PAGES = ("slow-head", "slow-body", "loop", *PACKED)


@pytest.fixture
def server():
    serving = loopback(Handler)
    serving.headers = []
    yield serving
    serving.stop()


NOT_PUBLIC = """127.0.0.1 0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 169.254.169.254 172.16.0.1 192.168.0.1 192.0.0.9
192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1
::ffff:8.8.8.8 ::ffff:127.0.0.1 ::8.8.8.8 64:ff9b::a00:1 100::1 64:ff9b:1::1 2002:a00:1:: 2001:0:a00:1::
2001:2::1 2001:db8::1 3fff::1 5f00::1 fc00::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 no-address"""
PUBLIC = "8.8.8.8 1.1.1.1 2606:4700:4700::1111 2a00:1450:4001::1"


def test_special_addresses_are_not_public():
    """Issue 45, section 4: NAT64, 6to4 and multicast counted as public."""
    assert not any(map(is_public_address, NOT_PUBLIC.split()))
    assert all(map(is_public_address, PUBLIC.split()))


def test_the_address_that_was_checked_is_connected_to(server, monkeypatch):
    """Issue 45, section 4. A host that resolves to a public address and then to a private one is asked at the first."""
    answers, connected = iter(["93.184.216.34", "127.0.0.1"]), []

    def resolve(host, port, **_):
        return [(0, 0, 0, "", (next(answers), port))]

    def connect(self, host, port, *_):
        connected.append(host)
        raise httpcore.ConnectError("refused")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    client = httpx.Client(transport=BoundedTransport(5, public=True))
    with pytest.raises(httpx.ConnectError):
        client.get("http://rebinding.example/")
    with refused(r"127\.0\.0\.1"):
        client.get("http://rebinding.example/")
    assert connected == ["93.184.216.34"]


def test_pages_at_private_addresses_leave_their_snippets(server):
    [passages] = WebRetriever(f"searxng:{server.url}")(["?"], 3)
    texts = [passage.text for passage in passages]
    assert texts == ["Snippet slow-head.", "Snippet slow-body.", "Snippet loop."]
    assert len(server.headers) == 1


def test_slow_and_packed_pages_end_in_time_and_leave_their_snippets(server):
    """Issue 45, section 4: a server that drips, and bodies of gigabytes."""
    start = time.monotonic()
    search = WebRetriever(f"searxng:{server.url}", private=True, timeout=4)
    [passages] = search(["?"], 20)
    assert time.monotonic() - start < 18
    texts = {passage.title: passage.text for passage in passages}
    assert texts["honest"] == "Curie was a physicist."
    left = {name for name, text in texts.items() if text.startswith("Snippet")}
    assert left >= {"slow-head", "loop", "nested", "brotli", "zstd", "broken"}


@pytest.mark.parametrize("head", [b"", b"\r\n"])
def test_a_search_server_that_drips_is_given_up(server, head, monkeypatch):
    """Issue 45, section 4."""
    monkeypatch.setattr(Handler, "do_POST", lambda self: self.drip(head))
    start = time.monotonic()
    with refused("cannot be searched: ReadTimeout"):
        RemoteRetriever(f"{server.url}/retrieve", timeout=0.5)(["?"], 1)
    assert time.monotonic() - start < 10


async def get_json(url, **options):
    async with Client(ServerConfig(url, **options)) as client:
        return await client.send("GET", url, lambda: None, json_of)


@pytest.mark.parametrize(
    "name, said",
    [
        ("bomb", "more than"),
        ("nested", "which was not asked for"),
        ("deflate", "more than"),
        ("zstd", "which was not asked for"),
        ("broken", "not packed as it says"),
    ],
)
def test_packed_replies_of_engines_are_bounded(server, name, said, monkeypatch):
    """Issue 45, section 4: packed bodies in the client of the engines."""
    monkeypatch.setattr(Client, "most_bytes", 1 << 16)
    assert said in asyncio.run(get_json(f"{server.url}/{name}", retries=0)).reason


def test_content_is_unfolded_no_further_than_the_bound():
    """Issue 45, section 4: nested gzip and zstd."""
    content = Content("gzip", 1000)
    assert not content.add(BOMB)
    assert len(bytes(content)) == 1000
    small = Content("", 10)
    assert small.add(b"123456789")
    assert not small.add(b"01")
    assert bytes(small) == b"1234567890"


MARKER = "marker-key-8d1f"


def test_no_client_logs_its_key(server, monkeypatch, caplog):
    """Issue 45, section 4: the key of Google stood in a line of httpx."""
    for name in ("GOOGLE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, MARKER)
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "openai", "urllib3", "asyncio"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    url = f"{server.url}/search"
    user = server.url.replace("//", f"//user:{MARKER}@")
    WebRetriever("google:cx", google=url, pages=False)(["?"], 1)
    WebRetriever(f"searxng:{user}", pages=False)(["?"], 1)
    bearer = {"Authorization": f"Bearer {MARKER}"}
    for search in (
        RemoteRetriever(url, headers=bearer),
        RemoteRetriever(f"{user}/retrieve"),
    ):
        with pytest.raises((UserError, KeyError)) as refused:
            search(["?"], 1)
        assert MARKER not in str(refused.value)
    asyncio.run(get_json(url))
    basic = base64.b64encode(f"user:{MARKER}".encode()).decode()
    sent = {value for headers in server.headers for value in headers.values()}
    assert {MARKER, f"Basic {basic}", *bearer.values()} <= sent
    assert len(caplog.records) > 20
    logged = caplog.text + repr([record.args for record in caplog.records])
    assert MARKER not in logged
    assert basic not in logged


ECHOES = {
    "refused": (401, {"error": {"message": f"no such key: {MARKER}"}}, {}),
    "failed": (500, {"error": {"message": f"Bearer {MARKER}"}}, {}),
    "no JSON": (200, MARKER.encode(), {}),
    "elsewhere": (302, b"", {"Location": f"https://elsewhere.example/?key={MARKER}"}),
    "packed": (200, b"x", {"Content_Encoding": MARKER}),
}


def ask_teacher(url):
    teacher = EndpointTeacher(TeacherConfig(url, "m", retries=0))
    return list(teacher.label([Case.of("Retrieve", "Q?", "", "A.")]))


STATE = JudgeInput((Message("user", "Who?"),))


def ask_judge(url):
    with Library.at_endpoint(url, "m", retries=0, adapters={}) as library:
        return library.get(find("query_rewrite"))(STATE)


def ask_grader(url):
    executor, *others = executor_of(f"m@{url}")
    judge = Library(executor, {}).get(find("query_rewrite"))
    return [judge(STATE), repr(executor), others]


def ask_engine(url):
    with closing(HTTPEngine.load(HTTPConfig(url, model_dir=".", retries=0))):
        return


@pytest.mark.parametrize("ask", [ask_teacher, ask_judge, ask_grader, ask_engine])
@pytest.mark.parametrize("echo", ECHOES)
def test_a_key_that_a_server_repeats_stands_in_no_log_and_no_result(
    server, monkeypatch, caplog, ask, echo
):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.headers.append(dict(self.headers))
        status, content, headers = ECHOES[echo]
        self.answer(status, content, **headers)

    for method in ("do_POST", "do_GET"):
        monkeypatch.setattr(Handler, method, answer)
    for name in ("OPENAI_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, MARKER)
    caplog.set_level(logging.DEBUG)
    try:
        said = repr(ask(server.url))
    except UserError as error:
        said = str(error)
    keys = {headers["Authorization"] for headers in server.headers}
    assert keys == {f"Bearer {MARKER}"}
    assert caplog.records
    # What httpcore logs of the headers of a reply is the server's own.
    logged = ""
    for record in caplog.records:
        message = record.getMessage()
        if "receive_response_headers" not in message:
            logged += f"{message} {record.args!r} {record.exc_text}"
    assert MARKER not in said + logged


def test_an_httpx_that_keeps_its_pool_elsewhere_is_not_used_unguarded(monkeypatch):
    monkeypatch.setattr(httpx.HTTPTransport, "__init__", lambda *_, **__: None)
    with pytest.raises(AttributeError, match="_pool"):
        BoundedTransport(1.0, public=True)
