"""Vectors of a server of embeddings: an index that it encodes, and replies that are none."""

import json

import numpy as np
import pytest
from loopback import Answering, loopback
from refusals import refused

from retrieval import Passage, add_passages, index_passages, open_index
from retrieval.local_encoders import load_encoder
from selfrag.engines.embeddings import ADDRESS, ServerEncoder


def vector_of(text):
    return [float(len(text)), float(text.count("a")), 1.0]


class Embedding(Answering):
    models = ("tiny",)
    texts, keys = [], set()

    def do_GET(self):
        models = [{"id": name, "object": "model"} for name in self.models]
        self.answer(200, {"data": models})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.keys.add(self.headers["Authorization"])
        self.texts.extend(request["input"])
        if any(len(text) > 1000 for text in request["input"]):
            error = b'{"error": {"message": "the maximum context length is 512"}}'
            self.answer(400, error)
            return
        rows = [
            {"index": n, "embedding": vector_of(text)}
            for n, text in enumerate(request["input"])
        ]
        self.answer(200, {"data": rows[::-1], "model": request["model"], "usage": {}})


@pytest.fixture
def server():
    served = loopback(type("Fresh", (Embedding,), {"texts": [], "keys": set()}))
    yield served
    served.stop()


def test_an_index_is_encoded_and_searched_by_a_server_that_a_user_names(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    passages = [Passage(f"p{n}", "a" * n + "b") for n in range(1, 201)]
    encoder = load_encoder(f"{server.url}/v1#tiny")
    assert (encoder.card.dim, encoder.card.source) == (3, "server:tiny")
    np.testing.assert_array_equal(
        encoder.encode(["aab", "b", ""]),
        [vector_of("aab"), vector_of("b"), vector_of(" ")],
    )
    assert encoder.encode([]).shape == (0, 3)
    built = index_passages(
        passages, tmp_path / "index", encoder=encoder, language="none"
    )
    assert built(["aaaaa"], 1)[0][0].id == "p200"
    # a file names no address
    assert server.url not in (tmp_path / "index" / "manifest.json").read_text()
    with refused(f"--encoder-engine URL.*{ADDRESS}"):
        open_index(tmp_path / "index")
    monkeypatch.setenv(ADDRESS, server.url)
    assert open_index(tmp_path / "index")(["aaaaa"], 1)[0][0].id == "p200"
    assert add_passages(tmp_path / "index", [Passage("new", "a" * 300)]) == 1
    assert server.handler.keys == {"Bearer secret"}
    with refused("was built with another encoder"):
        open_index(tmp_path / "index", f"{server.url}#other")


def test_commands_name_the_server(server, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    rows = '{"id": "a", "text": "aaa"}\n{"id": "b", "text": "b"}\n'
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "more.jsonl").write_text('{"id": "c", "text": "aaaaaa"}\n')
    engine = f"--encoder-engine {server.url}"
    out, _ = command(f"selfrag index build rows.jsonl -o i --language none {engine}")
    assert "encoded by tiny" in out
    assert "] a" in command(f"selfrag index search i aaaa -k 1 {engine}")[0]
    command(f"selfrag index add i more.jsonl {engine}")
    assert (
        "tiny, 3 numbers a passage, of a server" in command("selfrag index info i")[0]
    )
    _, err = command("selfrag index search i aaaa", code=2)
    assert "--encoder-engine URL" in err


def test_the_only_model_of_a_server_need_not_be_named(server):
    assert ServerEncoder(server.url).card.name == "tiny"
    server.handler.models = ("one", "two")
    with refused(r"has 2 models \(one, two\); name one"):
        ServerEncoder(server.url)


def test_a_text_that_the_server_refuses_is_one_line(server):
    with refused("status 400: the maximum context length"):
        ServerEncoder(server.url).encode(["short"] * 100 + ["x" * 2000])


def test_what_the_server_decides_cannot_be_given(server):
    with refused("its server decides on precision"):
        load_encoder(f"{server.url}#tiny", precision="bfloat16")


BAD = """
no JSON
{}
{"data": 5}
{"data": []}
{"data": [{"index": 1, "embedding": [1.0]}]}
{"data": [{"index": 0, "embedding": ["x"]}]}
{"data": [{"index": 0, "embedding": []}]}
{"data": [{"index": 0, "embedding": [NaN]}]}
{"data": [{"index": 0, "embedding": "AAAA"}]}
"""


@pytest.mark.parametrize("reply", BAD.strip().splitlines())
def test_a_reply_without_embeddings_is_one_line(reply):
    class Bad(Answering):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, reply.encode())

    served = loopback(Bad)
    with refused() as caught:
        ServerEncoder(served.url, "m")
    served.stop()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "http://user:pw@host", "http://", "https://h?x=1"]
)
def test_an_address_without_a_server_is_one_line(url):
    with refused(r"url|address|no server"):
        load_encoder(f"{url}#m")
