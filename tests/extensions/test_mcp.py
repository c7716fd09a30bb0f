"""The tools for agents, asked by the official package's own client: in one process, over a pipe and over HTTP."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import httpx
import pytest
import uvicorn
from served import random_rag, refusal, soon
from tables import each
from written import PROMPTING, scripted

pytest.importorskip("mcp", reason="mcp is not installed")

from mcp import Client, StdioServerParameters

from retrieval import index_passages
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.extensions.mcp.serving import http_app
from selfrag.extensions.mcp.tools import make_server
from selfrag.serving.guard import Access
from selfrag.serving.listening import guarded, listen
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


def test_agents_see_three_tools_that_only_read_and_take_no_other_arguments():
    tools = anyio.run(make_server(Service(random_rag())).list_tools)
    assert [tool.name for tool in tools] == ["ask", "search", "judge"]
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint
        assert tool.output_schema
        assert tool.input_schema["additionalProperties"] is False


def test_an_answer_has_its_citations_with_file_and_page():
    rag = random_rag(3)
    rag.retriever = lambda queries, k: [[PLACED]] * len(queries)
    expected = rag.generate("Q", mode="always")
    answer = call("ask", Service(rag), question="Q", mode="always")
    assert answer["answer"] == expected.cited_text()
    numbers = [citation["number"] for citation in answer["citations"]]
    assert numbers == list(range(1, len(expected.citations) + 1))
    for source in answer["citations"]:
        place = (source["file"], source["page"], source["url"])
        assert place == ("/docs/bears.pdf", 3, "file:///docs/bears.pdf#page=3")
    [hit] = call("search", Service(rag), query="Q", k=1)["passages"]
    values = (hit["id"], hit["file"], hit["page"], hit["number"])
    assert values == ("guide-3", "/docs/bears.pdf", 3, None)


def test_an_agent_learns_that_the_documents_hold_no_answer():
    tree = {"": "{~retrieve .1 .9 0}x", "[No Retrieval]": "I don't know.</s>"}
    service = Service(SelfRAG(PROMPTING, scripted({"Q": tree})))
    answer = call("ask", service, question="Q")
    assert answer["answer"] == "I don't know."
    assert answer["reason"] == "the model refused"
    assert answer["abstained"]


def test_a_statement_is_judged_beside_each_passage():
    rag = random_rag(3)
    texts = ["Tea is hot.", "Ice is cold."]
    statement = {"statement": "Tea is hot.", "passages": texts, "question": "Q"}
    judgments = call("judge", Service(rag), **statement)["judgments"]
    turns = json.loads(
        '[{"role": "user", "content": "Q"}, {"role": "assistant", "content": "Tea is hot."}]'
    )
    for text, judgment in zip(texts, judgments, strict=True):
        isrel, issup, isuse = (
            rag.judge(f"token_{role}", turns, [Passage("0", text)]).judgments[0]
            for role in ("isrel", "issup", "isuse")
        )
        assert judgment["relevance"] == isrel.label
        assert judgment["support"] == issup.label
        assert judgment["usefulness"] == isuse.label
        assert judgment["support_probability"] == issup.distribution[0]


BAD = """
ask → {} → question is missing
ask → {"question": ""} → question must have at least 1 character
ask → {"question": "  "} → the question is empty
ask → {"question": "LONG"} → question must have at most 32768 characters
ask → {"question": 5} → question must be text, not 5
ask → {"question": "Q", "passages": 5000} → passages must be less than or equal to 50, not 5000
ask → {"question": "Q", "mode": "quick"} → mode must be 'adaptive', 'always' or 'never', not 'quick'
ask → {"question": "Q", "temperature": 0} → temperature is unknown
search → {"query": "Q", "k": 1000000000} → k must be less than or equal to 100, not 1000000000
judge → {"statement": "A", "passages": []} → passages must have at least 1 item, not 0
judge → {"statement": "A", "passages": {"a": 1}} → passages must be a list, not a dict
judge → {"statement": "A", "passages": [5]} → passages.0 must be text, not 5
other → {} → Unknown tool: other
"""


@each("tool, arguments, said", BAD.replace("LONG", "x" * 40_000))
def test_a_wrong_argument_is_told_in_one_line(tool, arguments, said):
    assert call(tool, **json.loads(arguments)) == said


REQUEST = """{"jsonrpc": "2.0", "id": 7, "method": "tools/call",
"params": {"name": "search", "arguments": {"query": "Q", "k": 1}}}""".replace("\n", " ")
PARAMS = json.dumps(json.loads(REQUEST)["params"])
NO_MESSAGE = [
    *((text, None, -32700) for text in ("no JSON", "{", "[" * 100_000)),
    *((text, None, -32600) for text in (f"[{REQUEST}]", "5", "null", "{}")),
    *(
        (REQUEST.replace("7", identifier), None, -32600)
        for identifier in ("null", "1.5", "true", "[1]")
    ),
    (REQUEST.replace("2.0", "1.0"), 7, -32600),
    (REQUEST.replace('"tools/call"', "5"), 7, -32600),
    (REQUEST.replace(PARAMS, "[1]"), 7, -32600),
]
HALF = REQUEST.replace('"Q"', '"\\ud800"')


def test_what_cannot_be_answered_is_one_line():
    rag = random_rag()
    full = Service(rag, capacity=Capacity(live=0, queue=0))
    assert call("ask", full, question="Q").endswith("try again later")
    rag.retriever = None
    assert "no index" in call("search", Service(rag), query="Q")

    def fails(queries, k):
        raise OSError("secret\npath")

    rag.retriever = fails
    assert "\n" not in call("ask", Service(rag), question="Q", mode="always")


PIPED = """
import sys
sys.path[:0] = {paths!r}
from served import random_rag
from selfrag.extensions.mcp.serving import serve_stdio
serve_stdio(random_rag())
"""
START = """{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}""".replace(
    "\n", " "
)
STARTED = '{"jsonrpc": "2.0", "method": "notifications/initialized"}'


def test_every_line_of_a_pipe_has_a_reply():
    """An agent waited for ever after a line that is no message, and after half of a character in an argument."""
    tests = Path(__file__).parents[1]
    rooms = ("serving", "decoding", "engines")
    code = PIPED.format(paths=[str(tests / room) for room in rooms])
    lines = [START, STARTED, *(text for text, _, _ in NO_MESSAGE)]
    lines += ["\udcff\udcfe", HALF]
    sent = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        process.stdin.write(sent)
        process.stdin.flush()
        # none to the notification
        replies = [json.loads(process.stdout.readline()) for _ in lines[1:]]
        process.stdin.close()
        assert process.stdout.read() == b""
    errors = [
        (reply["id"], reply["error"]["code"]) for reply in replies if "error" in reply
    ]
    expected = [(identifier, code) for _, identifier, code in NO_MESSAGE]
    assert errors == [*expected, (None, -32700)]
    results = {reply["id"]: reply["result"] for reply in replies if "result" in reply}
    assert results.keys() == {0, 7}
    assert results[7]["structuredContent"]["passages"]


def test_the_protocol_over_http_behind_the_guard():
    """The server answers clients of this machine, and no other site."""
    config = uvicorn.Config(
        guarded(http_app(random_rag()), Access()), log_level="error", ws="none"
    )
    server = uvicorn.Server(config)
    with listen(ListenSettings(port=0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        soon(lambda: server.started, 60)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"

        async def ask():
            async with Client(url) as client:
                return await client.call_tool("ask", {"question": "question 1"})

        answer = anyio.run(ask).structured_content["answer"]
        assert answer == random_rag().generate("question 1").cited_text()
        for text, identifier, code in NO_MESSAGE:
            reply = httpx.post(url, content=text)
            body = reply.json()
            error = body["error"]
            outcome = (reply.status_code, body["id"], error["code"])
            assert outcome == (400, identifier, code)
            assert not re.search(r"\n|pydantic", error["message"])
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        session = httpx.post(url, content=START, headers=headers)
        headers["Mcp-Session-Id"] = session.headers["Mcp-Session-Id"]
        half = httpx.post(url, content=HALF, headers=headers)
        assert '"passages"' in half.text
        refused = httpx.post(url, json={}, headers={"Host": "evil.example"})
        assert refusal(refused) == (403, "host_not_allowed")
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
            question = {"question": "What is alpha?", "mode": "always"}
            answer = await client.call_tool("ask", question)
            return answer, await client.call_tool("search", {"query": "alpha"})

    answer, hits = anyio.run(use)
    assert not answer.is_error
    assert hits.structured_content["passages"][0]["text"]
