"""The tools for agents, asked by the official package's own client: in one process, over a pipe and over HTTP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import pytest
from served import random_rag
from written import PROMPTING, scripted

pytest.importorskip("mcp", reason="mcp is not installed")

from mcp import Client, StdioServerParameters

from retrieval import index_passages
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.extensions.mcp.messages import RefusedMessageError, read_message
from selfrag.extensions.mcp.serving import http_app
from selfrag.extensions.mcp.tools import make_server
from selfrag.serving.guard import Access
from selfrag.serving.service import Service
from selfrag.serving.settings import Capacity, ListenSettings

PLACED = Passage(
    "guide-3",
    "They sleep for hours.",
    "Bears > Sleep",
    metadata={"file": "/docs/bears.pdf", "page": 3},
)


def call(tool, service=None, **arguments):
    """What a tool answers: its structure, or the line of its error."""

    async def ask():
        async with Client(make_server(service or Service(random_rag()))) as client:
            result = await client.call_tool(tool, arguments)
            return (
                result.content[0].text if result.is_error else result.structured_content
            )

    return anyio.run(ask)


def test_agents_see_three_tools_that_only_read():
    async def listed():
        async with Client(make_server(Service(random_rag()))) as client:
            return (await client.list_tools()).tools

    tools = anyio.run(listed)
    assert [tool.name for tool in tools] == ["ask", "search", "judge"]
    assert all(
        tool.description and tool.annotations.read_only_hint and tool.output_schema
        for tool in tools
    )


def test_an_answer_has_its_citations_with_file_and_page():
    rag = random_rag(3)
    rag.retriever = lambda queries, k: [[PLACED]] * len(queries)
    expected = rag.generate("Q", mode="always")
    answer = call("ask", Service(rag), question="Q", mode="always")
    assert answer["answer"] == expected.cited_text()
    assert [citation["number"] for citation in answer["citations"]] == list(
        range(1, len(expected.citations) + 1)
    )
    for source in answer["citations"]:
        assert (source["file"], source["page"], source["url"]) == (
            "/docs/bears.pdf",
            3,
            "file:///docs/bears.pdf#page=3",
        )
    [hit] = call("search", Service(rag), query="Q", k=1)["passages"]
    assert (hit["id"], hit["file"], hit["page"], hit["number"]) == (
        "guide-3",
        "/docs/bears.pdf",
        3,
        None,
    )


def test_an_agent_learns_that_the_documents_hold_no_answer():
    tree = {"": "{~retrieve .1 .9 0}x", "[No Retrieval]": "I don't know.</s>"}
    service = Service(SelfRAG(PROMPTING, scripted({"Q": tree})))
    answer = call("ask", service, question="Q")
    assert (answer["answer"], answer["abstained"], answer["reason"]) == (
        "I don't know.",
        True,
        "the model refused",
    )


def test_a_statement_is_judged_beside_each_passage():
    rag = random_rag(3)
    texts = ["Tea is hot.", "Ice is cold."]
    judgments = call(
        "judge", Service(rag), statement="Tea is hot.", passages=texts, question="Q"
    )["judgments"]
    turns = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "Tea is hot."},
    ]
    for text, judgment in zip(texts, judgments, strict=True):
        by_tokens = [
            rag.judge(f"token_{role}", turns, [Passage("0", text)]).judgments[0]
            for role in ("isrel", "issup", "isuse")
        ]
        labels = [judgment["relevance"], judgment["support"], judgment["usefulness"]]
        assert labels == [expected.label for expected in by_tokens]
        assert judgment["support_probability"] == by_tokens[1].distribution[0]


BAD = [
    ("ask", {}, "question is missing"),
    ("ask", {"question": ""}, "question must have at least 1 character"),
    ("ask", {"question": "  "}, "the question is empty"),
    (
        "ask",
        {"question": "x" * 40_000},
        "question must have at most 32768 characters",
    ),
    ("ask", {"question": 5}, "question must be text, not 5"),
    (
        "ask",
        {"question": "Q", "passages": 5_000},
        "passages must be less than or equal to 50, not 5000",
    ),
    (
        "ask",
        {"question": "Q", "mode": "quick"},
        "mode must be 'adaptive', 'always' or 'never', not 'quick'",
    ),
    ("ask", {"question": "Q", "temperature": 0}, "temperature is unknown"),
    (
        "search",
        {"query": "Q", "k": 10**9},
        "k must be less than or equal to 100, not 1000000000",
    ),
    (
        "judge",
        {"statement": "A", "passages": []},
        "passages must have at least 1 item, not 0",
    ),
    (
        "judge",
        {"statement": "A", "passages": ["x"] * 21},
        "passages must have at most 20 items, not 21",
    ),
    (
        "judge",
        {"statement": "A", "passages": {"a": 1}},
        "passages must be a list, not a dict",
    ),
    (
        "judge",
        {"statement": "A", "passages": [5]},
        "passages.0 must be text, not 5",
    ),
    ("other", {}, "Unknown tool: other"),
]


@pytest.mark.parametrize("tool, arguments, said", BAD)
def test_a_wrong_argument_is_told_in_one_line(tool, arguments, said):
    assert call(tool, **arguments) == said


def test_the_schemas_of_arguments_allow_no_others():
    tools = anyio.run(make_server(Service(random_rag())).list_tools)
    for tool in tools:
        assert tool.input_schema["additionalProperties"] is False


CALL = {"name": "search", "arguments": {"query": "Q", "k": 1}}
REQUEST = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": CALL}
NO_MESSAGE = [
    ("no JSON", None, -32700),
    ("{", None, -32700),
    ("[" * 100_000, None, -32700),
    (json.dumps([REQUEST]), None, -32600),
    ("5", None, -32600),
    ("null", None, -32600),
    ("{}", None, -32600),
    (json.dumps(REQUEST | {"id": None}), None, -32600),
    (json.dumps(REQUEST | {"id": 1.5}), None, -32600),
    (json.dumps(REQUEST | {"id": True}), None, -32600),
    (json.dumps(REQUEST | {"id": [1]}), None, -32600),
    (json.dumps(REQUEST | {"jsonrpc": "1.0"}), 7, -32600),
    (json.dumps(REQUEST | {"method": 5}), 7, -32600),
    (json.dumps(REQUEST | {"params": [1]}), 7, -32600),
]
HALF = json.dumps(REQUEST).replace('"Q"', '"\\ud800"')


@pytest.mark.parametrize("text, identifier, code", NO_MESSAGE)
def test_what_is_no_message_has_an_error(text, identifier, code):
    with pytest.raises(RefusedMessageError) as refused:
        read_message(text)
    error = refused.value.reply
    assert (error.id, error.error.code) == (identifier, code)
    assert "\n" not in error.error.message
    assert "pydantic" not in error.error.message


def test_what_cannot_be_answered_is_one_line():
    rag = random_rag()
    assert call(
        "ask", Service(rag, capacity=Capacity(live=0, queue=0)), question="Q"
    ).endswith("try again later")
    rag.retriever = None
    assert "no index" in call("search", Service(rag), query="Q")

    def fails(queries, k):
        raise OSError("secret\npath")

    rag.retriever = fails
    said = call("ask", Service(rag), question="Q", mode="always")
    assert "\n" not in said


PIPED = """
import sys
sys.path[:0] = {paths!r}
from served import random_rag
from selfrag.extensions.mcp.serving import serve_stdio
serve_stdio(random_rag())
"""
GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
START = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": GREETING}
STARTED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def test_every_line_of_a_pipe_has_a_reply():
    """An agent waited for ever after a line that is no message, and after half of a character in an argument."""
    tests = Path(__file__).parents[1]
    code = PIPED.format(paths=[str(tests / "serving"), str(tests / "decoding")])
    lines = [json.dumps(START), json.dumps(STARTED)]
    lines += [text for text, _, _ in NO_MESSAGE]
    lines += ["\udcff\udcfe", HALF]
    sent = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(sent)
        process.stdin.flush()
        expected_replies = len(lines) - 1  # none to the notification
        replies = [
            json.loads(process.stdout.readline()) for _ in range(expected_replies)
        ]
        process.stdin.close()
        assert process.stdout.read() == b""
    errors = [reply for reply in replies if "error" in reply]
    expected = [(identifier, code) for _, identifier, code in NO_MESSAGE]
    expected.append((None, -32700))
    sent_back = [(reply["id"], reply["error"]["code"]) for reply in errors]
    assert sent_back == expected
    results = {reply["id"]: reply["result"] for reply in replies if "result" in reply}
    assert results.keys() == {0, 7}
    assert results[7]["structuredContent"]["passages"]


def test_the_protocol_over_http_behind_the_guard():
    """The server answers clients of this machine, and no other site."""
    import threading

    import uvicorn
    from served import soon

    from selfrag.serving.listening import listen

    with listen(ListenSettings(port=0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                http_app(random_rag(), Access()), log_level="error", ws="none"
            )
        )
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        thread.start()
        soon(lambda: server.started, 60)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"

        async def ask():
            async with Client(url) as client:
                return (
                    await client.call_tool("ask", {"question": "question 1"})
                ).structured_content

        assert (
            anyio.run(ask)["answer"] == random_rag().generate("question 1").cited_text()
        )
        for text, identifier, code in NO_MESSAGE:
            reply = httpx.post(url, content=text)
            error = reply.json()
            assert (reply.status_code, error["id"]) == (400, identifier)
            assert error["error"]["code"] == code
        accepted = {"Accept": "application/json, text/event-stream"}
        headers = accepted | {"Content-Type": "application/json"}
        session = httpx.post(url, json=START, headers=headers)
        headers["Mcp-Session-Id"] = session.headers["Mcp-Session-Id"]
        half = httpx.post(url, content=HALF, headers=headers)
        assert '"passages"' in half.text
        refused = httpx.post(url, json={}, headers={"Host": "evil.example"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            403,
            "host_not_allowed",
        )
        server.should_exit = True
        thread.join(10)


@pytest.mark.engine
def test_the_command_over_a_pipe(tiny_llama, tmp_path):
    """Nothing but the protocol is on the standard output."""
    folder = tmp_path / "index"
    index_passages(
        [Passage("a", "Alpha is the first letter.")], folder, encoder=tiny_llama
    )
    command = f"-m selfrag mcp --model {tiny_llama} --index {folder}".split()
    server = StdioServerParameters(
        command=sys.executable, args=command, env=dict(os.environ), cwd=tmp_path
    )

    async def use():
        async with Client(server) as client:
            answer = await client.call_tool(
                "ask", {"question": "What is alpha?", "mode": "always"}
            )
            hits = await client.call_tool("search", {"query": "alpha", "k": 1})
            return answer, hits

    answer, hits = anyio.run(use)
    assert not answer.is_error
    assert hits.structured_content["passages"][0]["text"]
