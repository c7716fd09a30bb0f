"""Whatever a server sends, one answer ends in one line, and no other answer of its batch is lost.

`SELFRAG_FUZZ=20000` runs so many batches, each with an answer from generated replies among two honest ones.
"""

import json
import os
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strange_server import THOUGHT, Reply, StrangeServer, mutated, replies

from retrieval.passage import Passage
from selfrag import SelfRAG
from selfrag.common.errors import UserError
from selfrag.common.untrusted import UNSEEN
from selfrag.decoding.trace import Trace
from selfrag.engines.embeddings import ServerEncoder
from selfrag.engines.server_config import ServerConfig
from selfrag.extensions.web.search import RemoteRetriever, open_searxng

BATCHES = int(os.environ.get("SELFRAG_FUZZ", "50"))
TEA = Passage("tea", "Green tea is brewed at 80 degrees.", "Tea")
QUESTIONS = ["How hot is tea?", "What is STRANGE?", "Is tea brewed?"]
TEXT = "Green tea is brewed at 80 degrees."
QUICK = {"retries": 1, "backoff": 0.001, "longest_wait": 0.002, "read_timeout": 5.0}
WAYS = [
    {"continuation": "none", "constraint_mode": "none"},
    {"continuation": "none"},
    {"continuation": "continue_final_message"},
]


def chat(text):
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return Reply(json.dumps({"choices": [choice]}).encode())


WORDS = {"support everything": "fully", "How useful": "5", "needed": "nothing"}


def honest(body):
    """The reply of a server without log-probabilities."""
    turns = [turn["content"] for turn in body["messages"] if turn["role"] == "user"]
    for part, word in WORDS.items():
        if part in turns[-1]:
            return chat(word)
    asks = "looked up" in turns[-1] or "help to answer" in turns[-1]
    return chat("yes" if asks else TEXT)


@pytest.fixture(scope="module")
def server():
    with StrangeServer(None) as server:
        yield server


def check_line(line):
    assert line, "a line"
    assert "\n" not in line
    assert not UNSEEN.search(line), line


def check_answer(answer):
    """One answer: a text with what it rests on, the abstention with its reason, or an error of one line."""
    if answer.error is not None:
        return check_line(answer.error)
    assert answer.text.strip(), answer
    assert THOUGHT not in answer.text
    assert answer.abstained == (answer.reason is not None)
    assert answer.abstained == (not answer.segments)
    if answer.note is not None:
        check_line(answer.note)
    for node in answer.trace.nodes:
        assert THOUGHT not in node.text
        assert 0.0 <= node.likelihood <= 1.0
    judged = [node for node in answer.trace.nodes if any(node.judgments.values())]
    if answer.citations and not judged:
        assert "is not judged" in str(answer.note), answer.trace.nodes
    assert Trace.from_json(answer.trace.to_json()) == answer.trace
    json.dumps(answer.as_dict(), allow_nan=False)
    return None


@settings(
    max_examples=BATCHES,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.lists(replies(), min_size=1, max_size=4),
    replies(TEXT),
    st.sampled_from(WAYS),
    st.sampled_from(["always", "adaptive", "never"]),
)
def test_no_reply_is_a_traceback_or_loses_a_neighbour(server, labels, text, way, mode):
    sent = []

    def reply(path, body):
        if "/models" in path:
            return Reply(b"{}", 404)
        if "STRANGE" not in json.dumps(body):
            return honest(body)
        sent.append(body)
        if honest(body) == chat(TEXT):
            return text
        return labels[len(sent) % len(labels)]

    server.reply = reply
    evidence = [[TEA]] * 3
    with SelfRAG.from_pretrained(f"m@{server.url}/v1", **way, **QUICK) as rag:
        first, strange, last = rag.generate(QUESTIONS, evidence=evidence, mode=mode)
    for answer in (first, last):
        assert (answer.error, answer.text) == (None, TEXT)
        assert answer.citations == (() if mode == "never" else (TEA,))
    check_answer(strange)


@settings(
    max_examples=BATCHES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.lists(replies(), min_size=1, max_size=5))
def test_a_strange_server_is_loaded_or_refused_in_one_line(server, strange):
    sent = []

    def reply(path, body):
        sent.append(path)
        return strange[len(sent) % len(strange)]

    server.reply = reply
    try:
        SelfRAG.from_pretrained(f"m@{server.url}/v1", **QUICK).close()
    except UserError as error:
        check_line(str(error))


HITS = {"_source": {"id": "a", "text": "Tea."}, "_score": 1.5}
SHAPES = [
    {"data": [{"index": 0, "embedding": [1.0, 2.0]}]},
    {"result": [[{"document": {"id": "a", "contents": "Tea."}, "score": 1.5}]]},
    {"hits": {"hits": [HITS]}},
    {"results": [[{"id": "a", "text": "Tea."}]]},
    {"results": [{"url": "http://127.0.0.1:1/", "title": "T", "content": "Tea."}]},
]
READERS = {
    "embeddings": lambda url: ServerEncoder(url, "m").encode(["tea"]),
    "retrieve": lambda url: RemoteRetriever(f"{url}/retrieve")(["tea"], 2),
    "search": lambda url: RemoteRetriever(f"{url}/search")(["tea"], 2),
    "elasticsearch": lambda url: RemoteRetriever(f"{url}/ix/_search")(["tea"], 2),
    "searxng": lambda url: open_searxng(url)(["tea"], 2),
}


@settings(
    max_examples=BATCHES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(replies(), mutated(st.sampled_from(SHAPES)), st.booleans())
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_other_servers_are_read_or_refused_in_one_line(
    server, monkeypatch, read, strange, value, is_close
):
    quick = partial(ServerConfig, **QUICK)
    monkeypatch.setattr("selfrag.engines.embeddings.ServerConfig", quick)
    reply = Reply(json.dumps(value).encode()) if is_close else strange
    server.reply = lambda path, body: reply
    try:
        read(server.url)
    except UserError as error:
        check_line(str(error))
